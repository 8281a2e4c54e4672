"""Operations that are kernels of their own rather than rows of a weld: selection, index logits, attention
over selected slots, routing, block-scaled linear layers.

Each is an operator ``torch.ops.kernelweld.<name>`` with a reference in plain torch, which runs on any device
and whose shapes a tracer sees, and a Triton kernel for CUDA tensors. One file an operation.
"""
