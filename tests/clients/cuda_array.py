"""Arrays in a device's memory, by the CUDA runtime and ctypes: for clients that bring no arrays of their own."""
import ctypes

import numpy

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
_runtime = ctypes.CDLL("libcudart.so.13")


def done(code):
    if code != 0:
        _runtime.cudaGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"CUDA error {code}: {_runtime.cudaGetErrorString(code).decode()}")


def set_device(device):
    done(_runtime.cudaSetDevice(device))


class Stream:
    def __init__(self):
        self.handle = ctypes.c_void_p()
        done(_runtime.cudaStreamCreate(ctypes.byref(self.handle)))

    def synchronize(self):
        done(_runtime.cudaStreamSynchronize(self.handle))


class Array:
    """A NumPy array's values in the current device's memory, until this object goes."""

    def __init__(self, values, dtype=numpy.float32):
        values = numpy.ascontiguousarray(values, dtype=dtype)
        self.shape, self.dtype, self.size, self.nbytes = values.shape, values.dtype, values.size, values.nbytes
        self.pointer = ctypes.c_void_p()
        done(_runtime.cudaMalloc(ctypes.byref(self.pointer), ctypes.c_size_t(self.nbytes)))
        source = values.ctypes.data_as(ctypes.c_void_p)
        done(_runtime.cudaMemcpy(self.pointer, source, ctypes.c_size_t(self.nbytes), HOST_TO_DEVICE))

    def __del__(self):
        _runtime.cudaFree(self.pointer)

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer.value, False),
            "version": 3,
            "strides": None,
        }

    def tolist(self):
        """The values, after what is queued on the device's blocking streams."""
        values = numpy.empty(self.shape, self.dtype)
        target = values.ctypes.data_as(ctypes.c_void_p)
        done(_runtime.cudaMemcpy(target, self.pointer, ctypes.c_size_t(self.nbytes), DEVICE_TO_HOST))
        return values.tolist()
