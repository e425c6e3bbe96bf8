//! Finding plug-ins: shared objects that a variable `NCCL_<kind>_PLUGIN` names, or that have a name of their own.

use std::ffi::{CString, OsStr, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::sys;

/// The most plug-ins of a list.
const LISTED_MAX: usize = 14;
/// The longest name in bytes.
const NAME_MAX: usize = 254;
/// The word for symbols of the program itself; any beginning of it will do.
const STATIC: &str = "STATIC_PLUGIN";
/// The word for no plug-in.
const NONE: &str = "none";

/// A shared object that is loaded. It is unloaded when dropped.
pub struct PluginLibrary {
    library: Library,
}

/// What has come of opening a plug-in.
pub enum PluginSearch {
    /// It is loaded.
    Loaded(PluginLibrary),
    /// There is no file of these names.
    Missing(String),
    /// There is one, and the loader says what is wrong with it.
    Broken(String),
}

/// The plug-ins of a kind (`net`) that a variable's value names, or the usual one if it is not set.
pub fn listed(kind: &str, value: Option<&str>) -> Vec<String> {
    let Some(value) = value else { return vec![format!("libnccl-{kind}.so")] };
    let names = value.split(',').map(str::trim).filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case(NONE));
    let (usable, long): (Vec<_>, Vec<_>) = names.partition(|name| name.len() <= NAME_MAX);
    if !long.is_empty() {
        log::info!(target: "INIT,NET", "{} names of plug-ins are longer than {NAME_MAX} bytes: ignored", long.len());
    }
    usable.into_iter().take(LISTED_MAX).map(str::to_string).collect()
}

/// Opens a plug-in of a kind by its path, its name, or a part of its name.
pub fn open(kind: &str, name: &str) -> PluginSearch {
    if is_static(name) {
        return load(None);
    }
    let first = load(Some(name));
    let PluginSearch::Missing(_) = first else { return first };
    if name.contains('/') || (name.starts_with("lib") && name.ends_with(".so")) {
        return first;
    }
    let longer = format!("libnccl-{kind}-{name}.so");
    match load(Some(&longer)) {
        PluginSearch::Missing(_) => PluginSearch::Missing(format!("{name} {longer}")),
        other => other,
    }
}

/// Whether a name stands for the program itself.
fn is_static(name: &str) -> bool {
    STATIC.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
}

/// Loads a file, or the program itself.
fn load(name: Option<&str>) -> PluginSearch {
    // SAFETY: what the file does when it is loaded is its own affair: the user has asked for it.
    match unsafe { Library::open(name.map(OsStr::new), RTLD_NOW | RTLD_LOCAL) } {
        Ok(library) => PluginSearch::Loaded(PluginLibrary { library }),
        Err(error) => {
            let (text, name) = (loader_text(&error), name.unwrap_or_default());
            match text.starts_with(&format!("{name}: ")) && text.contains("No such file or directory") {
                true => PluginSearch::Missing(name.to_string()),
                false => PluginSearch::Broken(text),
            }
        }
    }
}

/// What the loader itself says.
fn loader_text(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

impl PluginLibrary {
    /// Where the data of a name are.
    pub fn data(&self, name: &str) -> Option<*const c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the address alone is taken, whatever lies there.
        let symbol = unsafe { self.library.get::<*const c_void>(name.to_bytes_with_nul()) };
        symbol.ok().map(|symbol| *symbol).filter(|address| !address.is_null())
    }
}

/// The file that some data of a plug-in lie in.
pub fn file_of(data: *const c_void) -> String {
    sys::loaded_file(data.addr()).unwrap_or_else(|| "?".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_variable_names() {
        assert_eq!(listed("net", None), ["libnccl-net.so"]);
        assert!(listed("net", Some("NONE")).is_empty() && listed("net", Some("")).is_empty());
        assert_eq!(listed("net", Some("a, /b/c.so,none,,d")), ["a", "/b/c.so", "d"]);
        let long = format!("{},{}", "x".repeat(255), "y".repeat(254));
        assert_eq!(listed("net", Some(&long)), ["y".repeat(254)]);
        assert_eq!(listed("net", Some(&vec!["a"; 20].join(","))).len(), 14);
    }

    #[test]
    fn names_that_are_not_there_say_what_was_looked_for() {
        let missing = |name: &str| match open("net", name) {
            PluginSearch::Missing(names) => names,
            PluginSearch::Loaded(_) => panic!("{name} is there"),
            PluginSearch::Broken(text) => panic!("{name}: {text}"),
        };
        assert_eq!(missing("no-such"), "no-such libnccl-net-no-such.so");
        assert_eq!(missing("libno-such.so"), "libno-such.so");
        assert_eq!(missing("/no/such"), "/no/such");
    }

    #[test]
    fn a_file_that_is_no_library_is_broken_rather_than_missing() {
        let PluginSearch::Broken(text) = open("net", "/proc/self/comm") else { panic!("it can be loaded") };
        assert!(text.contains("/proc/self/comm"), "{text}");
    }

    #[test]
    fn the_program_itself() {
        for name in ["STATIC_PLUGIN", "static_plugin", "Static"] {
            assert!(matches!(open("net", name), PluginSearch::Loaded(_)), "{name}");
        }
        assert!(!is_static("STATIC_PLUGINS") && !is_static("net"));
    }
}
