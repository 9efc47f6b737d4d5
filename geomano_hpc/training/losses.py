"""The paper's losses, summed over the batch as the benchmark does. Axes: B batch, H x W grid, C channels."""

import torch
import torch.nn.functional as F


def relative_l2(prediction_BHWC: torch.Tensor, target_BHWC: torch.Tensor) -> torch.Tensor:
    """|| prediction - target ||_2 / || target ||_2 of each sample [B]."""
    difference = (prediction_BHWC - target_BHWC).flatten(1)
    return torch.linalg.vector_norm(difference, dim=1) / torch.linalg.vector_norm(target_BHWC.flatten(1), dim=1)


def central_differences(field_BHWC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """d/dx and d/dy by central differences with zero padding, in units of the grid step."""
    padded = F.pad(field_BHWC, (0, 0, 1, 1, 1, 1))
    d_dx = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / 2
    d_dy = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / 2
    return d_dx, d_dy


def gradient_loss(prediction_BHWC: torch.Tensor, target_BHWC: torch.Tensor) -> torch.Tensor:
    """L_g: relative L2 of d/dx plus that of d/dy, of each sample [B].

    The prediction's border is set to zero before differencing. The grid step cancels in the quotient.
    """
    inner = F.pad(prediction_BHWC[:, 1:-1, 1:-1], (0, 0, 1, 1, 1, 1))
    (predicted_dx, predicted_dy), (target_dx, target_dy) = central_differences(inner), central_differences(target_BHWC)
    return relative_l2(predicted_dx, target_dx) + relative_l2(predicted_dy, target_dy)
