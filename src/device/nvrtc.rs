//! Compiling the kernels on the user's machine: where no embedded image fits the driver, NVIDIA's run-time compiler
//! makes one from the embedded source, and the disk keeps it.
//!
//! `libnvrtc` is found, not linked, as the driver is. Its code runs on drivers of its own CUDA major version and of
//! newer ones, so a compiler newer than the driver is passed over.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use super::cache::Cache;
use crate::error::Error;

/// The kernels as one file that includes nothing (`build.rs` makes it from `kernels/`).
static SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.cu"));

/// CUDA major versions whose compilers are looked for, newest first.
const MAJORS: [i32; 2] = [13, 12];
/// The name that a CUDA toolkit's own folder has, whatever its version.
const PLAIN: &str = "libnvrtc.so";
/// `NVRTC_SUCCESS`.
const SUCCESS: c_int = 0;

type Program = *mut c_void;
/// `nvrtcGetProgramLogSize` and its like.
type SizeOf = unsafe extern "C" fn(Program, *mut usize) -> c_int;
/// `nvrtcGetProgramLog` and its like.
type BytesOf = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The compiler's functions that are used.
struct NvrtcTable {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    count_architectures: unsafe extern "C" fn(*mut c_int) -> c_int,
    architectures: unsafe extern "C" fn(*mut c_int) -> c_int,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log: (SizeOf, BytesOf),
    cubin: (SizeOf, BytesOf),
    ptx: (SizeOf, BytesOf),
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
}

/// A loaded compiler.
pub struct Nvrtc {
    table: NvrtcTable,
    version: (i32, i32),
    // Kept so that the table's functions stay mapped.
    _library: Library,
}

/// The function of this name, as the type that the caller declares for it.
///
/// # Safety
/// The type must be the function's own.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, Error> {
    // SAFETY: the caller vouches for the type.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| Error::NoCuda(format!("libnvrtc lacks {name}")))
}

impl NvrtcTable {
    fn load(library: &Library) -> Result<NvrtcTable, Error> {
        // SAFETY: nvrtc.h declares the functions with these types.
        unsafe {
            Ok(NvrtcTable {
                version: symbol(library, "nvrtcVersion")?,
                error_string: symbol(library, "nvrtcGetErrorString")?,
                count_architectures: symbol(library, "nvrtcGetNumSupportedArchs")?,
                architectures: symbol(library, "nvrtcGetSupportedArchs")?,
                create: symbol(library, "nvrtcCreateProgram")?,
                compile: symbol(library, "nvrtcCompileProgram")?,
                log: (symbol(library, "nvrtcGetProgramLogSize")?, symbol(library, "nvrtcGetProgramLog")?),
                cubin: (symbol(library, "nvrtcGetCUBINSize")?, symbol(library, "nvrtcGetCUBIN")?),
                ptx: (symbol(library, "nvrtcGetPTXSize")?, symbol(library, "nvrtcGetPTX")?),
                destroy: symbol(library, "nvrtcDestroyProgram")?,
            })
        }
    }
}

/// A program of the compiler. Dropping it destroys it.
struct Compilation<'a> {
    table: &'a NvrtcTable,
    program: Program,
}

impl Compilation<'_> {
    fn bytes(&self, (size_of, bytes_of): (SizeOf, BytesOf)) -> Vec<u8> {
        let mut size = 0;
        // SAFETY: the program lives; the pointer is to a live number.
        let known = unsafe { size_of(self.program, &mut size) } == SUCCESS;
        let mut bytes = vec![0; if known { size } else { 0 }];
        // SAFETY: the buffer has the size that the compiler asked for.
        if bytes.is_empty() || unsafe { bytes_of(self.program, bytes.as_mut_ptr().cast()) } != SUCCESS {
            bytes.clear();
        }
        bytes
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is ours and not used any more.
        unsafe { (self.table.destroy)(&mut self.program) };
    }
}

impl Nvrtc {
    /// Loads a compiler: a path, or a name that the dynamic linker looks up.
    ///
    /// # Errors
    /// [`Error::NoCuda`] with the reason.
    pub fn open(name: &Path) -> Result<Nvrtc, Error> {
        let missing = |why: &dyn Display| Error::NoCuda(format!("{}: {why}", name.display()));
        // SAFETY: the caller asks for this compiler; its initialisers are its own.
        let library = unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL) };
        let library = library.map_err(|error| missing(&super::driver::why(&error)))?;
        let table = NvrtcTable::load(&library)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the pointers are to live integers.
        let code = unsafe { (table.version)(&mut major, &mut minor) };
        if code != SUCCESS {
            return Err(missing(&format!("nvrtcVersion says {code}")));
        }
        Ok(Nvrtc { table, version: (major, minor), _library: library })
    }

    /// The first compiler that a driver of this version can use; a version is major × 1000 + minor × 10.
    ///
    /// # Errors
    /// [`Error::NoCuda`] that names all that was tried, where there is none.
    pub fn find(driver_version: i32) -> Result<Nvrtc, Error> {
        let mut tried = Vec::new();
        for name in candidates(driver_version, &folders()) {
            match Nvrtc::open(&name) {
                Ok(found) if found.version.0 > driver_version / 1000 => {
                    tried.push(format!("{} (version {}.{})", name.display(), found.version.0, found.version.1));
                }
                Ok(found) => return Ok(found),
                Err(_) => tried.push(name.display().to_string()),
            }
        }
        Err(Error::NoCuda(format!(
            "the driver is one of CUDA {}.{}, and no libnvrtc of CUDA {} or older was found: install one (pip install \
             nvidia-cuda-nvrtc-cu12) and put its folder into LD_LIBRARY_PATH. Tried: {}",
            driver_version / 1000,
            driver_version % 1000 / 10,
            driver_version / 1000,
            tried.join(", ")
        )))
    }

    /// The compiler's CUDA version: major and minor.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The architectures that it compiles for, ascending, such as 90.
    pub fn architectures(&self) -> Vec<i32> {
        let mut count = 0;
        // SAFETY: the pointer is to a live integer.
        let known = unsafe { (self.table.count_architectures)(&mut count) } == SUCCESS;
        let mut list = vec![0; if known { usize::try_from(count).unwrap_or(0) } else { 0 }];
        // SAFETY: the list has as many places as the compiler asked for.
        if list.is_empty() || unsafe { (self.table.architectures)(list.as_mut_ptr()) } != SUCCESS {
            return Vec::new();
        }
        list.sort_unstable();
        list
    }

    /// The kernels for a device of this architecture: machine code where the compiler knows it, else code of the
    /// newest older one that the driver translates (PTX).
    ///
    /// # Errors
    /// [`Error::NoCuda`] where the architecture is older than all that the compiler knows; [`Error::Internal`] with
    /// the compiler's words where it refuses the source.
    pub fn kernels(&self, architecture: i32) -> Result<Vec<u8>, Error> {
        let known = self.architectures();
        let nearest = known.iter().rev().find(|known| **known <= architecture).copied().ok_or_else(|| {
            let (major, minor) = self.version;
            Error::NoCuda(format!(
                "libnvrtc {major}.{minor} does not compile for compute capability {architecture} any more"
            ))
        })?;
        let machine = nearest == architecture;
        let option = format!("--gpu-architecture={}_{nearest}", if machine { "sm" } else { "compute" });
        let bytes = self.compile(&option, machine)?;
        Ok(bytes)
    }

    fn compile(&self, architecture: &str, machine: bool) -> Result<Vec<u8>, Error> {
        let text = |text: &str| CString::new(text).map_err(|_| Error::Internal(format!("{text:?} has a NUL")));
        let (source, name) = (text(SOURCE)?, text("oxccl.cu")?);
        let options = [text(architecture)?, text("--std=c++17")?, text("--fmad=false")?];
        let mut program = null_mut();
        // SAFETY: both strings live; there are no headers.
        let code = unsafe { (self.table.create)(&mut program, source.as_ptr(), name.as_ptr(), 0, null(), null()) };
        self.check("nvrtcCreateProgram", code, "")?;
        let compilation = Compilation { table: &self.table, program };
        let options = options.each_ref().map(|option| option.as_ptr());
        // SAFETY: the program lives, and so do the options, which are as many as is said.
        let code = unsafe { (self.table.compile)(program, options.len() as c_int, options.as_ptr()) };
        self.check("nvrtcCompileProgram", code, &String::from_utf8_lossy(&compilation.bytes(self.table.log)))?;
        let bytes = compilation.bytes(if machine { self.table.cubin } else { self.table.ptx });
        match bytes.is_empty() {
            true => Err(Error::Internal(format!("libnvrtc gave no code for {architecture}"))),
            false => Ok(bytes),
        }
    }

    fn check(&self, call: &str, code: c_int, log: &str) -> Result<(), Error> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the compiler gives a static string for every number.
        let text = unsafe { CStr::from_ptr((self.table.error_string)(code)) }.to_string_lossy();
        let lines: Vec<&str> = log.trim_end_matches('\0').lines().take(20).collect();
        Err(Error::Internal(format!(
            "{call} of the kernels with libnvrtc {:?}: {text}: {}",
            self.version,
            lines.join("; ")
        )))
    }
}

/// The kernels for a device, from the disk or freshly compiled. `accept` says whether the driver takes them; what it
/// does not take is not used again.
///
/// # Errors
/// As [`Nvrtc::find`] and [`Nvrtc::kernels`], and those of `accept`.
pub(super) fn load<T>(
    driver_version: i32,
    architecture: i32,
    mut accept: impl FnMut(&[u8]) -> Result<T, Error>,
) -> Result<T, Error> {
    let nvrtc = Nvrtc::find(driver_version)?;
    let (major, minor) = nvrtc.version();
    let cache = Cache::open(&format!("kernels-sm_{architecture}-nvrtc_{major}.{minor}"), SOURCE.as_bytes());
    let mut kept = || {
        let refused = |error: Error| log::info!(target: "INIT", "{}: not usable ({error})", cache.path().display());
        cache.read().and_then(|kernels| accept(&kernels).map_err(refused).ok())
    };
    if let Some(accepted) = kept() {
        return Ok(accepted);
    }
    // Of the ranks of a host, one compiles.
    let _lock = cache.lock();
    if let Some(accepted) = kept() {
        return Ok(accepted);
    }
    log::info!(target: "INIT", "compiling the kernels for compute capability {architecture} with libnvrtc {major}.{minor}");
    let kernels = nvrtc.kernels(architecture)?;
    let accepted = accept(&kernels)?;
    if let Err(error) = cache.write(&kernels) {
        log::info!(target: "INIT", "the compiled kernels are not kept in {}: {error}", cache.path().display());
    }
    Ok(accepted)
}

/// Where a compiler may be, besides the dynamic linker's own folders: a toolkit's, and beside the CUDA runtime that
/// the process has loaded (where Python's wheels put it).
fn folders() -> Vec<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).filter(|home| !home.is_empty());
    let toolkits = homes.map(PathBuf::from).chain([PathBuf::from("/usr/local/cuda")]).map(|home| home.join("lib64"));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let runtimes = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let runtimes =
        runtimes.filter(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcudart.so")));
    let beside = runtimes
        .filter_map(Path::parent)
        .flat_map(|folder| [folder.to_path_buf(), folder.join("../../cuda_nvrtc/lib")]);
    let mut folders: Vec<PathBuf> = beside.chain(toolkits).collect();
    folders.dedup();
    folders
}

/// What to try, in this order: names for the dynamic linker, which also finds what the process has loaded, then paths.
fn candidates(driver_version: i32, folders: &[PathBuf]) -> Vec<PathBuf> {
    let numbered =
        MAJORS.into_iter().filter(|major| *major <= driver_version / 1000).map(|major| format!("{PLAIN}.{major}"));
    let names: Vec<String> = numbered.chain([PLAIN.to_string()]).collect();
    let paths = folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
    names.iter().map(PathBuf::from).chain(paths.filter(|path| path.exists())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_newer_than_the_driver_are_not_tried() {
        let names =
            |version| candidates(version, &[]).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(names(13010), ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]);
        assert_eq!(names(12040), ["libnvrtc.so.12", "libnvrtc.so"]);
    }

    #[test]
    fn a_missing_compiler_is_named() {
        // No driver has this version, so no compiler is old enough.
        let Err(Error::NoCuda(text)) = Nvrtc::find(1020) else { panic!("found a compiler for CUDA 1.2") };
        assert!(text.contains("CUDA 1.2") && text.contains("Tried: libnvrtc.so"), "{text}");
    }

    #[test]
    fn the_source_includes_nothing() {
        assert!(SOURCE.contains("oxccl_ll_") && SOURCE.contains("__global__"), "{}", SOURCE.len());
        let includes: Vec<&str> = SOURCE.lines().filter(|line| line.trim_start().starts_with("#include")).collect();
        assert!(includes.is_empty(), "{includes:?}");
    }
}
