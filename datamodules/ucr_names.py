"""The names of the data sets of the UCR archive."""

_NAMES_2018 = """
    ACSF1 Adiac AllGestureWiimoteX AllGestureWiimoteY AllGestureWiimoteZ ArrowHead BME Beef BeetleFly BirdChicken CBF
    Car Chinatown ChlorineConcentration CinCECGTorso Coffee Computers CricketX CricketY CricketZ Crop
    DiatomSizeReduction DistalPhalanxOutlineAgeGroup DistalPhalanxOutlineCorrect DistalPhalanxTW DodgerLoopDay
    DodgerLoopGame DodgerLoopWeekend ECG200 ECG5000 ECGFiveDays EOGHorizontalSignal EOGVerticalSignal Earthquakes
    ElectricDevices EthanolLevel FaceAll FaceFour FacesUCR FiftyWords Fish FordA FordB FreezerRegularTrain
    FreezerSmallTrain Fungi GestureMidAirD1 GestureMidAirD2 GestureMidAirD3 GesturePebbleZ1 GesturePebbleZ2 GunPoint
    GunPointAgeSpan GunPointMaleVersusFemale GunPointOldVersusYoung Ham HandOutlines Haptics Herring HouseTwenty
    InlineSkate InsectEPGRegularTrain InsectEPGSmallTrain InsectWingbeatSound ItalyPowerDemand LargeKitchenAppliances
    Lightning2 Lightning7 Mallat Meat MedicalImages MelbournePedestrian MiddlePhalanxOutlineAgeGroup
    MiddlePhalanxOutlineCorrect MiddlePhalanxTW MixedShapesRegularTrain MixedShapesSmallTrain MoteStrain
    NonInvasiveFetalECGThorax1 NonInvasiveFetalECGThorax2 OSULeaf OliveOil PLAID PhalangesOutlinesCorrect Phoneme
    PickupGestureWiimoteZ PigAirwayPressure PigArtPressure PigCVP Plane PowerCons ProximalPhalanxOutlineAgeGroup
    ProximalPhalanxOutlineCorrect ProximalPhalanxTW RefrigerationDevices Rock ScreenType SemgHandGenderCh2
    SemgHandMovementCh2 SemgHandSubjectCh2 ShakeGestureWiimoteZ ShapeletSim ShapesAll SmallKitchenAppliances
    SmoothSubspace SonyAIBORobotSurface1 SonyAIBORobotSurface2 StarLightCurves Strawberry SwedishLeaf Symbols
    SyntheticControl ToeSegmentation1 ToeSegmentation2 Trace TwoLeadECG TwoPatterns UMD UWaveGestureLibraryAll
    UWaveGestureLibraryX UWaveGestureLibraryY UWaveGestureLibraryZ Wafer Wine WordSynonyms Worms WormsTwoClass Yoga
"""
NAMES_2018 = frozenset(_NAMES_2018.split())

# names of the archive of 2015, which the paper uses, that have changed since
NAMES_2015 = {
    "50words": "FiftyWords",
    "CinC_ECG_torso": "CinCECGTorso",
    "Cricket_X": "CricketX",
    "Cricket_Y": "CricketY",
    "Cricket_Z": "CricketZ",
    "FISH": "Fish",
    "Gun_Point": "GunPoint",
    "Lighting2": "Lightning2",
    "Lighting7": "Lightning7",
    "MALLAT": "Mallat",
    "NonInvasiveFatalECG_Thorax1": "NonInvasiveFetalECGThorax1",
    "NonInvasiveFatalECG_Thorax2": "NonInvasiveFetalECGThorax2",
    "SonyAIBORobotSurface": "SonyAIBORobotSurface1",
    "SonyAIBORobotSurfaceII": "SonyAIBORobotSurface2",
    "Two_Patterns": "TwoPatterns",
    "WordsSynonyms": "WordSynonyms",
    "synthetic_control": "SyntheticControl",
    "uWaveGestureLibrary_X": "UWaveGestureLibraryX",
    "uWaveGestureLibrary_Y": "UWaveGestureLibraryY",
    "uWaveGestureLibrary_Z": "UWaveGestureLibraryZ",
    "wafer": "Wafer",
    "yoga": "Yoga",
}
