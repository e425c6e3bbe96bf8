"""Operators that PyTorch has for GPUs only, put together of others: SyncBatchNorm's, and the cells of LSTM and GRU.

They get and give what PyTorch's Python and its derivatives hand them; statistics are taken in float32 where values are
halves.
"""
import torch


def accumulated(tensor):
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def per_channel(values, like):
    """A vector with one value for each channel, in the shape that goes with a batch."""
    return values.view([1, -1] + [1] * (like.dim() - 2))


def but_channels(tensor):
    return [dim for dim in range(tensor.dim()) if dim != 1]


def batch_norm_stats(tensor, eps):
    variance, mean = torch.var_mean(accumulated(tensor), but_channels(tensor), correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_elemt(tensor, weight, bias, mean, invstd, eps):
    out = (accumulated(tensor) - per_channel(mean, tensor)) * per_channel(invstd, tensor)
    if weight is not None:
        out = out * per_channel(accumulated(weight), tensor)
    if bias is not None:
        out = out + per_channel(accumulated(bias), tensor)
    return out.to(tensor.dtype)


def batch_norm_gather_stats_with_counts(tensor, mean, invstd, running_mean, running_var, momentum, eps, counts):
    """The statistics of all ranks, a row each, become those of the whole batch; the running ones move towards them."""
    counts = counts.to(mean.dtype).view(-1, 1)
    total = counts.sum()
    common = (mean * counts).sum(0) / total
    variances = invstd.pow(-2) - eps
    squares = ((variances + (mean - common).square()) * counts).sum(0)
    if running_mean is not None:
        running_mean.lerp_(common.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((squares / (total - 1)).to(running_var.dtype), momentum)
    return common, (squares / total + eps).rsqrt()


def batch_norm_gather_stats(tensor, mean, invstd, running_mean, running_var, momentum, eps, count):
    counts = torch.full((mean.shape[0],), count, dtype=mean.dtype, device=mean.device)
    return batch_norm_gather_stats_with_counts(tensor, mean, invstd, running_mean, running_var, momentum, eps, counts)


def batch_norm_backward_reduce(grad, tensor, mean, invstd, weight, input_g, weight_g, bias_g):
    grad_sum = accumulated(grad).sum(but_channels(tensor))
    centred = (accumulated(grad) * (accumulated(tensor) - per_channel(mean, tensor))).sum(but_channels(tensor))
    kind = weight.dtype if weight is not None else grad_sum.dtype
    return grad_sum, centred, (centred * invstd).to(kind), grad_sum.to(kind)


def batch_norm_backward_elemt(grad, tensor, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    total = count.sum()
    scale = invstd if weight is None else invstd * accumulated(weight)
    shared = per_channel(sum_dy / total, tensor)
    slope = per_channel(invstd.square() * sum_dy_xmu / total, tensor)
    centred = accumulated(tensor) - per_channel(mean, tensor)
    return ((accumulated(grad) - shared - centred * slope) * per_channel(scale, tensor)).to(tensor.dtype)


def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    enter, forget, cell, leave = gates.chunk(4, 1)
    enter, forget, cell, leave = enter.sigmoid(), forget.sigmoid(), cell.tanh(), leave.sigmoid()
    cy = forget * cx + enter * cell
    return leave * cy.tanh(), cy, torch.cat([enter, forget, cell, leave], 1)


def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    enter, forget, cell, leave = workspace.chunk(4, 1)
    squashed = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_c = grad_hy * leave * (1 - squashed.square())
    grad_c = grad_c if grad_cy is None else grad_c + grad_cy
    gates = torch.cat([
        grad_c * cell * enter * (1 - enter),
        grad_c * cx * forget * (1 - forget),
        grad_c * enter * (1 - cell.square()),
        grad_hy * squashed * leave * (1 - leave),
    ], 1)  # fmt: skip
    return gates, grad_c * forget, gates.sum(0) if has_bias else None


def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    input_gates = input_gates if input_bias is None else input_gates + input_bias
    hidden_gates = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    (ir, iz, inew), (hr, hz, hnew) = input_gates.chunk(3, 1), hidden_gates.chunk(3, 1)
    reset, update = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    new = (inew + reset * hnew).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, hnew], 1)


def gru_cell_backward(grad_hy, workspace, has_bias):
    reset, update, new, hx, hnew = workspace.chunk(5, 1)
    grad_update = grad_hy * (hx - new) * update * (1 - update)
    grad_new = grad_hy * (1 - update) * (1 - new.square())
    grad_reset = grad_new * hnew * reset * (1 - reset)
    inputs = torch.cat([grad_reset, grad_update, grad_new], 1)
    hidden = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    biases = (inputs.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return inputs, hidden, grad_hy * update, *biases


TABLE = {
    "batch_norm_stats": batch_norm_stats,
    "batch_norm_elemt": batch_norm_elemt,
    "batch_norm_gather_stats": batch_norm_gather_stats,
    "batch_norm_gather_stats_with_counts": batch_norm_gather_stats_with_counts,
    "batch_norm_backward_reduce": batch_norm_backward_reduce,
    "batch_norm_backward_elemt": batch_norm_backward_elemt,
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
}
