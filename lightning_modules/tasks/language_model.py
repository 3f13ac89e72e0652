"""Word language models."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection

from datamodules.batched import Batch
from datamodules.streams import NO_TARGET
from lightning_modules.networks.recurrent_layer import (
    NEGATIVE_SLOPE,
    RADIUS,
    REFLECTORS,
    START,
    Cell,
    Nonlinearity,
    output_features,
    recurrent_layer,
)
from lightning_modules.networks.recurrent_start import Start
from lightning_modules.tasks.base import Task

State = Tensor | tuple[Tensor, ...]
CARRIED = "carried_states"


class Perplexity(MeanMetric):
    """The exponential of the mean loss of a word.

    Example:
        >>> import math
        >>> perplexity = Perplexity()
        >>> perplexity.update(math.log(2.0), weight=30)
        >>> round(perplexity.compute().item(), 4)
        2.0
    """

    def __init__(self) -> None:
        super().__init__(nan_strategy=math.nan)

    def compute(self) -> Tensor:
        """Returns the perplexity of all words so far."""
        return super().compute().exp()


class LanguageModel(Task):
    """Predicts the next word of texts that are read as successive windows of long streams.

    Words are embedded, read by recurrent layers, and the states mapped to the words. The state at the end of a window,
    cut off from its graph, is carried to the next one: back-propagation through time stops at the window, memory does
    not. Training, validation, test and prediction each carry their own, from the first batch of an epoch on.
    Checkpoints hold that of training, so that a run that is resumed within an epoch goes on where it was.

    Inputs and targets have the shape ``(batch, length)``, int64 in ``0 … vocabulary_size - 1``; targets of -100 are
    left out. The loss is the cross-entropy of a word in nats. Predictions are the most likely next words.

    Initial values: embeddings uniform in ±0.1, as the weight of the head.

    Args:
        vocabulary_size: words.
        cell: the recurrent layer; see :func:`lightning_modules.networks.recurrent_layer.recurrent_layer`, as for the
            arguments up to ``learn_initial_state`` that are not said here.
        hidden_size: size n of the state.
        embedding_size: features of a word; None: n.
        num_layers: recurrent layers.
        tied: whether the head's weight is the embedding's; then ``embedding_size`` must be that of the states.
        dropout: share dropped of embeddings, between layers, and of the states before the head.
        reflectors: reflectors of U and of V, at most n.
        radius: radius of the band around 1 that holds σ; None lets σ free.
        nonlinearity: activation; None is the cell's usual one.
        negative_slope: slope of leaky_relu below zero.
        learn_initial_state: whether the state before the first window is trained.
        learning_rate: Adam's learning rate in the first epoch.
        decay: factor of the learning rate from epoch to epoch.
        plain_rate: whether it is the rate of a plain network, of which weights in SVD form get multiples; see
            :func:`spectral_param.parameter_groups`.
        start: "torch" or "paper", what plain recurrent layers start from.

    Raises:
        ValueError: if ``tied`` and the sizes differ.

    Example:
        >>> model = LanguageModel(vocabulary_size=50, hidden_size=16)
        >>> model(model.example_input_array).shape
        torch.Size([2, 5, 50])
    """

    def __init__(
        self,
        vocabulary_size: int,
        cell: Cell = "spectral-rnn",
        hidden_size: int = 512,
        embedding_size: int | None = None,
        num_layers: int = 1,
        tied: bool = False,
        dropout: float = 0.2,
        reflectors: int = REFLECTORS,
        radius: float | None = RADIUS,
        nonlinearity: Nonlinearity | None = None,
        negative_slope: float = NEGATIVE_SLOPE,
        learn_initial_state: bool = False,
        learning_rate: float = 1e-3,
        decay: float = 0.8,
        plain_rate: bool = False,
        start: Start = START,
    ) -> None:
        features = output_features(cell, hidden_size)
        if tied and embedding_size not in (None, features):
            raise ValueError(f"embedding_size: expected {features} with a tied embedding, got {embedding_size}.")
        super().__init__()
        size = embedding_size or (features if tied else hidden_size)
        self.embedding = nn.Embedding(vocabulary_size, size)
        self.recurrent = recurrent_layer(
            cell,
            size,
            hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            reflectors=reflectors,
            radius=radius,
            nonlinearity=nonlinearity,
            negative_slope=negative_slope,
            learn_initial_state=learn_initial_state,
            start=start,
        )
        self.head = nn.Linear(features, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.head.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)
        if tied:
            self.head.weight = self.embedding.weight
        self.example_input_array = torch.zeros(2, 5, dtype=torch.int64)
        self._carried: dict[str, State] = {}
        self._before: State | None = None  # what the training window that is being read began with
        self._of_ranks: list[Tensor] = []

    def metrics(self) -> dict[str, Metric]:
        """Returns the perplexity."""
        return {"perplexity": Perplexity()}

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the cross-entropy of a word, in nats; 0 if there is no target."""
        total = F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=NO_TARGET, reduction="sum")
        return total / words(target).clamp(min=1)

    def forward(self, input: Tensor) -> Tensor:
        """Maps words ``(batch, length)`` to logits of the next ones, ``(batch, length, vocabulary_size)``."""
        return self.advance(input, None)[0]

    def advance(self, input: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Reads a window from a state on.

        Args:
            input: words, ``(batch, length)``.
            state: the state before; None: that of a new text.

        Returns:
            Logits of the next words, ``(batch, length, vocabulary_size)``, and the state after the window.
        """
        states, state = self.recurrent(self.dropout(self.embedding(input)), state)
        return self.head(self.dropout(states)), state

    def answer(self, input: Tensor, stage: str, batch_idx: int) -> Tensor:
        """Returns the logits of a window, read from where the one before of the stage stopped."""
        before = self._carried.get(stage) if batch_idx else None
        if before is not None and (streams := _parts(before)[0].shape[1]) != len(input):
            raise ValueError(f"batch_size: expected {streams} streams, as in the run that goes on, got {len(input)}.")
        logits, state = self.advance(input, before)
        self._carried[stage] = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        return logits

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the state of the training text, (ranks, …) each; a collective, as saving is."""
        batch: Any = self.trainer.fit_loop.epoch_loop.batch_progress.current
        # a window that an exception cut short is read again
        state = self._before if batch.started > batch.processed else self._carried.get("train")
        if self._of_ranks:  # loaded, and training has not begun
            checkpoint[CARRIED] = self._of_ranks
        elif state is not None:
            gathered = [cast(Tensor, self.all_gather(part)) for part in _parts(state)]
            checkpoint[CARRIED] = [part.reshape(-1, *part.shape[-3:]) for part in gathered]

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Remembers the state before the window."""
        self._before = self._carried.get("train")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the states over; checkpoints of older versions have none."""
        self._of_ranks = checkpoint.get(CARRIED, [])

    def on_train_start(self) -> None:
        """Goes on from this rank's state, if there are as many ranks as there were."""
        mine = [
            ranks[self.global_rank].to(self.device) for ranks in self._of_ranks if len(ranks) == self.trainer.world_size
        ]
        if mine:
            self._carried["train"] = tuple(mine) if len(mine) > 1 else mine[0]
        self._of_ranks = []

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the most likely next words, ``(batch, length)``."""
        return super().predict_step(batch, batch_idx).argmax(-1)

    def evaluate(self, loss: MeanMetric, metrics: MetricCollection, output: Tensor, target: Tensor) -> None:
        """Adds a window to loss and perplexity, each word counting the same."""
        mean, count = self.loss(output, target), words(target)
        loss.update(mean, count)
        metrics.update(mean, weight=count)


def _parts(state: State) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def words(target: Tensor) -> Tensor:
    """Returns how many words of a window are targets."""
    return (target != NO_TARGET).sum()
