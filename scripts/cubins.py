"""Compiles the kernels by a run-time compiler of NVIDIA's, side by side: machine code (sm_90) and PTX (compute_70).

  cubins.py LIBNVRTC SOURCE FOLDER CODE...

Writes FOLDER/CODE, compressed, for each code that the compiler knows, and prints its name."""
import ctypes
import multiprocessing
import os
import sys
import zlib


def check(nvrtc, code, call, log=b""):
    if code:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"{call}: {nvrtc.nvrtcGetErrorString(code).decode()}\n{log.decode()}")


def text_of(nvrtc, program, name):
    """What nvrtcGet<name>Size and nvrtcGet<name> give."""
    size = ctypes.c_size_t()
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{name}Size")(program, ctypes.byref(size)), f"nvrtcGet{name}Size")
    buffer = ctypes.create_string_buffer(size.value)
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{name}")(program, buffer), f"nvrtcGet{name}")
    return buffer.raw


def compile_one(job):
    library, source, folder, code = job
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    with open(source, "rb") as file:
        source = file.read()
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"oxccl.cu", 0, None, None)
    check(nvrtc, made, "nvrtcCreateProgram")
    options = [f"--gpu-architecture={code}".encode(), b"--std=c++17", b"--fmad=false"]
    options = (ctypes.c_char_p * len(options))(*options)
    compiled = nvrtc.nvrtcCompileProgram(program, len(options), options)
    check(nvrtc, compiled, f"nvrtcCompileProgram for {code}", text_of(nvrtc, program, "ProgramLog"))
    kind = "CUBIN" if code.startswith("sm_") else "PTX"
    with open(os.path.join(folder, code), "wb") as file:
        file.write(zlib.compress(text_of(nvrtc, program, kind), 9))
    return code


def known(nvrtc):
    count = ctypes.c_int()
    check(nvrtc, nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "nvrtcGetNumSupportedArchs")
    numbers = (ctypes.c_int * count.value)()
    check(nvrtc, nvrtc.nvrtcGetSupportedArchs(numbers), "nvrtcGetSupportedArchs")
    return set(numbers)


def main():
    library, source, folder, *codes = sys.argv[1:]
    there = known(ctypes.CDLL(library))
    wanted = [code for code in codes if int(code.rsplit("_", 1)[1]) in there]
    with multiprocessing.Pool() as pool:
        for code in pool.imap(compile_one, [(library, source, folder, code) for code in wanted]):
            print(code)


if __name__ == "__main__":
    main()
