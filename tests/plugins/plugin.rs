//! The tests' own plug-in, `net_plugin.c`, compiled for a version of the interface.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::raw::{c_char, c_long};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use libloading::os::unix::{Library, Symbol};
use nccl::plugin::net::{NetSelection, choose};
use nccl::plugin::network::Network;

use crate::common::c_program::{Compilation, Folder};
use crate::common::need;

/// All versions.
pub const VERSIONS: [u32; 7] = [6, 7, 8, 9, 10, 11, 12];

/// A plug-in's file in a folder of its own, loaded so that a test can look into it.
pub struct TestPlugin {
    pub version: u32,
    file: PathBuf,
    library: Library,
    _folder: Folder,
}

/// What the compiler has made so far, by version and macros.
static COMPILED: Mutex<BTreeMap<(u32, String), Vec<u8>>> = Mutex::new(BTreeMap::new());

/// Writes the plug-in to a file, compiled.
pub fn compile(version: u32, to: &Path, macros: &[&str]) -> Option<()> {
    let compiler = need::tool("cc")?;
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bytes) = compiled.get(&(version, macros.join(","))) {
        fs::write(to, bytes).expect("the test's folder can be written");
        return Some(());
    }
    let defined = [format!("VERSION={version}")].into_iter().chain(macros.iter().map(|name| name.to_string()));
    let args = ["-std=gnu11".to_string(), "-D_GNU_SOURCE".to_string()].into_iter();
    let args = args.chain(defined.map(|name| format!("-D{name}")));
    Compilation::bare(&compiler, "tests/plugins/net_plugin.c", to).shared().args(args).run();
    compiled.insert((version, macros.join(",")), fs::read(to).expect("the compiler has written it"));
    Some(())
}

impl TestPlugin {
    /// A plug-in of a version, which no other test has.
    pub fn new(version: u32) -> Option<TestPlugin> {
        TestPlugin::with(version, &[])
    }

    /// The same with macros.
    pub fn with(version: u32, macros: &[&str]) -> Option<TestPlugin> {
        let folder = Folder::new("plugin");
        let file = folder.join(&format!("libnccl-net-test{version}.so"));
        compile(version, &file, macros)?;
        // SAFETY: it does nothing but read its environment when it is loaded.
        let library = unsafe { Library::new(&file) }.expect("the plug-in can be loaded");
        Some(TestPlugin { version, file, library, _folder: folder })
    }

    /// Its path.
    pub fn path(&self) -> &str {
        self.file.to_str().expect("a path in UTF-8")
    }

    /// The plug-in as a network for a communicator.
    pub fn network(&self) -> Arc<dyn Network> {
        let selection = NetSelection { plugins: Some(self.path()), name: Some("test"), ..NetSelection::default() };
        choose(&selection).expect("the plug-in works").expect("the plug-in is chosen")
    }

    /// What goes wrong from now on.
    pub fn fault(&self, list: &str) {
        let list = CString::new(list).expect("no NUL");
        // SAFETY: the type is that of the function in net_plugin.c.
        let set: Symbol<unsafe extern "C" fn(*const c_char)> = unsafe { self.library.get(b"plugin_fault\0") }.unwrap();
        // SAFETY: the text is C's.
        unsafe { set(list.as_ptr()) };
    }

    /// How often something was called, or is there.
    pub fn count(&self, name: &str) -> i64 {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: the type is that of the function in net_plugin.c.
        let get: Symbol<unsafe extern "C" fn(*const c_char) -> c_long> =
            unsafe { self.library.get(b"plugin_count\0") }.unwrap();
        // SAFETY: the text is C's.
        unsafe { get(name.as_ptr()) }
    }

    /// Everything has been given back, and nothing was done that may not be done.
    pub fn assert_clean(&self) {
        assert_eq!((self.count("live"), self.count("misuse")), (0, 0), "v{}", self.version);
    }
}
