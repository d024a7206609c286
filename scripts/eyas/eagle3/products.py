"""Matrix products that save little for their backward.

Products run in a compute dtype (`cast`: the weight in it), while the residual stream, norms and the weights' gradients
stay fp32: a weight is used at every step, and its gradients are summed in fp32. What is cheap is computed again in the
backward instead of saved: a norm's output, a gate's.
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F


def rms_norm(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x / rms(x), 1 / rms(x)) over the last dimension, rms² = mean x² + eps (arXiv 1910.07467); fp32."""
    inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return x * inverse, inverse


def rms_norm_backward(grad: Tensor, scale: Tensor, unit: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and of scale for y = scale · unit, (unit, inverse) = rms_norm(x).

    With d = grad · scale: dx = inverse · (d − unit · mean(d · unit)).
    """
    scaled = grad * unit  # [n, size]
    d_scale = scaled.sum(0)  # [size]
    mean = (scaled @ scale).unsqueeze(-1) / unit.shape[-1]  # [n, 1]
    return (grad * scale).addcmul_(unit, mean, value=-1).mul_(inverse), d_scale


class NormProducts(Function):
    """[norm(x) · scale] Wᵀ for several W at once.

    apply(x [n, size] fp32, scale [size], eps, casts, *weights) → tuple of [n, out] in the casts' dtype.
    """

    @staticmethod
    def forward(ctx, x, scale, eps, casts, *weights):
        ctx.save_for_backward(x, scale)
        ctx.eps, ctx.casts = eps, casts
        y = rms_norm(x, eps)[0].mul_(scale).to(casts[0].dtype)  # [n, size]
        return tuple(F.linear(y, cast) for cast in casts)

    @staticmethod
    def backward(ctx, *grads):
        x, scale = ctx.saved_tensors
        unit, inverse = rms_norm(x, ctx.eps)
        y = (unit * scale).to(ctx.casts[0].dtype)
        needed = ctx.needs_input_grad[4:]
        wide = [need and transposes_x(g, y) for g, need in zip(grads, needed, strict=True)]
        y_t = y.t().contiguous() if any(wide) else None  # once for all weights
        d_weights = [weight_gradient(g, y, y_t) if need else None for g, need in zip(grads, needed, strict=True)]
        d_y = (grads[0] @ ctx.casts[0]).float()
        for g, cast in zip(grads[1:], ctx.casts[1:], strict=True):
            accumulate(d_y, g, cast)
        d_x, d_scale = rms_norm_backward(d_y, scale, unit, inverse)
        return d_x if ctx.needs_input_grad[0] else None, d_scale, None, None, *d_weights


class Product(Function):
    """x Wᵀ added to an fp32 stream: apply(stream [n, out], x [n, in], cast, weight) → [n, out] fp32."""

    @staticmethod
    def forward(ctx, stream, x, cast, weight):
        ctx.save_for_backward(x)
        ctx.cast = cast
        return accumulate(stream.clone(), x, cast.t())

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        g = grad.to(x.dtype)
        return grad, g @ ctx.cast, None, weight_gradient(g, x)


class GatedProduct(Function):
    """(silu(gate) · up) Wᵀ added to an fp32 stream; saves gate and up only.

    apply(stream [n, out], gate [n, inner], up [n, inner], cast, weight) → [n, out] fp32.
    """

    @staticmethod
    def forward(ctx, stream, gate, up, cast, weight):
        ctx.save_for_backward(gate, up)
        ctx.cast = cast
        return accumulate(stream.clone(), F.silu(gate).mul_(up), cast.t())

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        g, silu = grad.to(gate.dtype), F.silu(gate)
        d_weight = weight_gradient(g, silu * up)
        d_inner = g @ ctx.cast  # [n, inner]
        d_up = silu.mul_(d_inner)
        d_gate = torch.ops.aten.silu_backward(d_inner.mul_(up), gate)
        return grad, d_gate, d_up, None, d_weight


def accumulate(total: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """total [n, out] fp32 += x [n, in] w [in, out], in place; the product in the dtype of x and w."""
    return total.addmm_(x, w) if x.dtype == total.dtype else total.add_(x @ w)


def weight_gradient(grad: Tensor, x: Tensor, x_t: Tensor | None = None) -> Tensor:
    """gradᵀ x in fp32: [out, in] of grad [n, out], x [n, in]; x_t: xᵀ in memory, where it is known.

    bf16 on a CPU: the smaller of the two is transposed in memory first, which makes the product twice as fast.
    """
    if grad.dtype == torch.float32 or grad.is_cuda:
        return (grad.t() @ x).float()
    if transposes_x(grad, x):
        return ((x.t().contiguous() if x_t is None else x_t) @ grad).float().t()
    return (grad.t().contiguous() @ x).float()


def transposes_x(grad: Tensor, x: Tensor) -> bool:
    """Whether weight_gradient lays xᵀ out in memory."""
    return grad.dtype != torch.float32 and not grad.is_cuda and x.shape[1] < grad.shape[1]
