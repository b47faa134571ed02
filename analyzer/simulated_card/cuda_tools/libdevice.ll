; Stand-in for libdevice.10.bc. Calls of its functions stay unresolved in the PTX, which nothing runs.
target triple = "nvptx64-nvidia-gpulibs"
