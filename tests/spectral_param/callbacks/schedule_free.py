"""An optimizer that averages by itself."""

import torch


class ScheduleFree(torch.optim.Optimizer):
    """SGD after Defazio et al. (2024): steps z along gradients at y = (1 - β) z + β x, where x is the mean of all z."""

    def __init__(self, parameters, lr, betas=(0.9, 0.999)):
        super().__init__(parameters, {"lr": lr, "betas": betas, "train_mode": False, "k": 0})

    def eval(self):
        self._turn(False, lambda beta: 1 - 1 / beta)

    def train(self):
        self._turn(True, lambda beta: 1 - beta)

    @torch.no_grad()
    def _turn(self, train_mode, weight):
        for group in self.param_groups:
            for parameter in group["params"] if group["train_mode"] is not train_mode else ():
                if "z" in self.state[parameter]:
                    parameter.lerp_(self.state[parameter]["z"], weight(group["betas"][0]))
            group["train_mode"] = train_mode

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            group["k"] += 1
            beta = group["betas"][0]
            for parameter in group["params"]:
                z = self.state[parameter].setdefault("z", parameter.clone())
                x = parameter.lerp(z, 1 - 1 / beta)
                z.sub_(parameter.grad, alpha=group["lr"])
                parameter.copy_(x.lerp_(z, 1 / group["k"]).lerp_(z, 1 - beta))
        return loss
