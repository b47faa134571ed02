"""A card that is not there: TensorFlow's own GPU runtime without a card, a driver or CUDA.

TensorFlow's Linux wheel is the CUDA build and looks CUDA's libraries up by name. This room makes a
private folder with libraries of those names that answer in their place: device memory is reserved
address space with a counter, a kernel launch does nothing. What TensorFlow then does on the host,
and asks its allocator for, is real. See ``benchmarks/results/phantom.md``.
"""
