//! What machine this is: a GPU driver or not, a job launcher around us, and how far apart two cores are.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::args::{Args, DeviceKind};
use crate::common::{self, cuda::Cuda};

/// Which device the ranks use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The software device, or a GPU.
    pub soft: bool,
    /// Folders to put before `LD_LIBRARY_PATH`.
    folders: Vec<PathBuf>,
    /// Variables that the ranks have besides.
    variables: Vec<(String, OsString)>,
    /// One line that says what is used, and why.
    pub line: String,
}

impl Device {
    /// Finds a device. Looks for a driver only where `--device` allows a GPU.
    ///
    /// # Errors
    /// If the wanted kind is not there.
    pub fn find(args: &Args) -> Result<Device, String> {
        let driver = match args.device {
            DeviceKind::Soft => Err("--device soft".to_string()),
            DeviceKind::Auto | DeviceKind::Gpu => driver(),
        };
        let profile = common::find_profile_dir();
        match driver {
            Ok(line) => {
                // The library of this build, unless another is named; the driver is found as it was found here.
                Ok(Device { soft: false, folders: profile.into_iter().collect(), variables: Vec::new(), line })
            }
            Err(why) if args.device == DeviceKind::Gpu => Err(format!("--device gpu: {why}")),
            Err(why) => {
                let profile = profile.ok_or("the software device was not built: run `cargo build` first")?;
                let line = format!(
                    "{why}: using softcuda, {} software device{} on host memory",
                    args.nranks,
                    if args.nranks == 1 { "" } else { "s" }
                );
                let folders = vec![profile.join("softcuda"), profile];
                Ok(Device { soft: true, folders, variables: Vec::new(), line })
            }
        }
    }

    /// The same for ranks that have these variables, too.
    pub fn with(&self, variables: Vec<(String, OsString)>) -> Device {
        Device { variables, ..self.clone() }
    }

    /// The environment of the workers.
    pub fn environment(&self, nranks: usize) -> Vec<(String, OsString)> {
        let mut vars = vec![("LD_LIBRARY_PATH".to_string(), common::join_library_path(&self.folders))];
        if self.soft && env::var_os("SOFTCUDA_DEVICES").is_none() {
            vars.push(("SOFTCUDA_DEVICES".to_string(), nranks.to_string().into()));
        }
        vars.extend(self.variables.iter().cloned());
        vars
    }
}

/// Whether the dynamic linker finds a driver with at least one device.
fn driver() -> Result<String, String> {
    let Ok(cuda) = Cuda::load("libcuda.so.1") else { return Err("no GPU driver".into()) };
    match cuda.device_count() {
        Ok(0) | Err(_) => Err("a GPU driver, but no device".into()),
        Ok(n) => {
            let kind = if cuda.is_software() { "softcuda (from LD_LIBRARY_PATH)" } else { "GPU driver" };
            Ok(format!("{kind} with {n} device{}", if n == 1 { "" } else { "s" }))
        }
    }
}

/// Variables in which job launchers say how many processes they started.
const LAUNCHERS: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_SIZE", "mpirun (Open MPI)"),
    ("PMI_SIZE", "mpiexec (MPICH)"),
    ("MV2_COMM_WORLD_SIZE", "mpirun (MVAPICH)"),
    ("SLURM_STEP_NUM_TASKS", "srun (Slurm)"),
    ("PALS_SIZE", "mpiexec (PALS)"),
];

/// A hint for people who start this program with a job launcher, which does not join its processes.
pub fn launcher_hint(nranks: usize, get: impl Fn(&str) -> Option<String>) -> Option<String> {
    LAUNCHERS.iter().find_map(|(variable, launcher)| {
        let size: usize = get(variable)?.parse().ok().filter(|size| *size > 1)?;
        Some(format!(
            "{launcher} started {size} processes ({variable}={size}), but perf starts its ranks itself: \
             this is one of {size} separate jobs of {nranks} rank{}, not a job of {size}. \
             Run it without the launcher, with -n {size}.",
            if nranks == 1 { "" } else { "s" }
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_get_a_hint() {
        let with = |name: &'static str, value: &'static str| {
            launcher_hint(1, move |variable| (variable == name).then(|| value.to_string()))
        };
        let hint = with("OMPI_COMM_WORLD_SIZE", "4").expect("a hint");
        assert!(hint.contains("4 separate jobs of 1 rank,"), "{hint}");
        assert_eq!(with("OMPI_COMM_WORLD_SIZE", "1"), None);
        assert_eq!(with("PMI_SIZE", "x"), None);
        assert_eq!(with("HOME", "4"), None);
    }
}
