//! Which network a communicator gets.

use std::path::Path;

use nccl::error::Code;
use nccl::plugin::net::{NetSelection, choose};

use crate::common::c_program::{Compilation, Folder};
use crate::common::launch::{self, Job};
use crate::common::need;
use crate::plugin::{TestPlugin, compile};

/// The name of the network that is chosen.
fn chosen(name: Option<&str>, plugins: Option<&str>) -> Result<String, String> {
    let chosen = choose(&NetSelection { name, plugins, ..NetSelection::default() });
    let name = chosen.map(|network| network.map_or("Socket".to_string(), |network| network.name().to_string()));
    name.map_err(|error| {
        assert_eq!(error.code(), Code::InvalidUsage);
        let text = error.to_string();
        assert!(text.starts_with("Failed to initialize any NET plugin: "), "{text}");
        text
    })
}

#[test]
fn a_name_that_is_asked_for_or_none() {
    assert_eq!(chosen(None, Some("none")).unwrap(), "Socket");
    assert_eq!(chosen(Some("socket"), Some("no-such")).unwrap(), "Socket");
    assert!(chosen(Some("IB"), Some("none")).unwrap_err().contains("there are no InfiniBand devices"));
    let text = chosen(Some("other"), Some("no-such")).unwrap_err();
    assert!(text.contains("asks for 'other' (no-such: there is no such library;"), "{text}");
}

#[test]
fn plugins_of_a_list_are_tried_in_their_order() {
    let Some(first) = TestPlugin::new(8) else { return };
    let Some(second) = TestPlugin::new(12) else { return };
    let list = format!("/no/such.so,{},{}", first.path(), second.path());
    assert_eq!(chosen(Some("TEST"), Some(&list)).unwrap(), "Test");
    assert_eq!((first.count("init"), second.count("init")), (1, 0));
    assert!(chosen(Some("other"), Some(&list)).unwrap_err().contains("its name is Test"));
    assert_eq!(chosen(Some("Socket"), Some(&list)).unwrap(), "Socket");
    first.fault("init:1:2");
    // It was initialised before, and needs no more.
    assert_eq!(chosen(Some("Test"), Some(&list)).unwrap(), "Test");
    assert_eq!((first.count("init"), second.count("init")), (0, 0));
}

#[test]
fn a_plugin_that_does_not_work_is_left_out() {
    let faults = [
        ("init:1:2", "init returned 2 (ncclSystemError): init fails as it was told: 2"),
        ("devices:1:3", "devices returned 3"),
        ("devices:1:none", "has no device"),
        ("getProperties:2:4", "getProperties returned 4"),
        ("getProperties:1+1:cuda", "device test0 does not take memory of the host (ptrSupport 0x2"),
    ];
    for (fault, why) in faults {
        for version in [6, 12] {
            let (Some(broken), Some(whole)) = (TestPlugin::new(version), TestPlugin::new(9)) else { return };
            broken.fault(fault);
            let text = chosen(Some("test"), Some(broken.path())).unwrap_err();
            assert!(text.contains(why), "{text}");
            // It may work the next time.
            assert_eq!(chosen(Some("test"), Some(broken.path())).unwrap(), "Test");
            broken.fault(fault);
            let list = format!("{},{}", broken.path(), whole.path());
            assert_eq!(chosen(Some("test"), Some(&list)).unwrap(), "Test");
            whole.assert_clean();
        }
    }
}

#[test]
fn a_device_without_host_memory_is_left_out() {
    let Some(plugin) = TestPlugin::new(11) else { return };
    plugin.fault("getProperties:1:cuda");
    let network = plugin.network();
    assert_eq!(network.devices().iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["test1"]);
    // The plug-in's own number for it is 1.
    let pair = crate::traffic::connect(&*network, (0, 0)).unwrap();
    crate::traffic::exchange(pair, &[3], 1).unwrap();
    drop(network);
    plugin.assert_clean();
}

#[test]
fn libraries_that_are_no_plugins() {
    let Some(compiler) = need::tool("cc") else { return };
    let folder = Folder::new("no-plugins");
    let library = |name: &str, text: &str| {
        let (source, file) = (folder.join(&format!("{name}.c")), folder.join(&format!("{name}.so")));
        std::fs::write(&source, text).expect("the test's folder can be written");
        Compilation::bare(&compiler, source.to_str().expect("UTF-8"), &file).shared().run();
        file
    };
    let empty = library("empty", "int nothing;\n");
    let old = library("old", "const char* const ncclNetPlugin_v4[20] = {\"old\"};\n");
    let nameless = library("nameless", "const char* const ncclNetPlugin_v8[19] = {0};\n");
    let hollow = library("hollow", "const char* const ncclNetPlugin_v12[22] = {\"hollow\"};\n");
    let Some(partial) = TestPlugin::with(9, &["OMIT_ISEND"]) else { return };
    let text = folder.join("text.so");
    std::fs::write(&text, "no library").expect("the test's folder can be written");
    let expected = [
        (&*empty, "has no symbol ncclNetPlugin_v6 to _v12"),
        (&*old, "has ncclNetPlugin_v4 at best, and v6 to v12 can be used"),
        (&*nameless, "has an ncclNetPlugin_v8 whose member `name` is NULL"),
        (&*hollow, "has an ncclNetPlugin_v12 whose member `init` is NULL"),
        (Path::new(partial.path()), "NET/Plugin: Test (v9): the member `isend` of its table is NULL"),
        (&*text, "text.so: "),
    ];
    for (file, why) in expected {
        let text = chosen(Some("x"), file.to_str()).unwrap_err();
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn a_table_that_is_filled_in_when_the_plugin_is_initialised() {
    for version in [6, 9, 12] {
        let Some(plugin) = TestPlugin::with(version, &["FILLED_LATER"]) else { return };
        // Its first name will do, and its second one.
        assert_eq!(chosen(Some("unfilled"), Some(plugin.path())).unwrap(), "Test");
        let network = plugin.network();
        crate::traffic::exchange(crate::traffic::connect(&*network, (0, 1)).unwrap(), &[3, 70_000], 2).unwrap();
        drop(network);
        plugin.assert_clean();
    }
    let Some(plugin) = TestPlugin::with(9, &["FILLED_LATER"]) else { return };
    assert_eq!(chosen(Some("test"), Some(plugin.path())).unwrap(), "Test");
    assert!(chosen(Some("neither"), Some(plugin.path())).unwrap_err().contains("its name is "));
}

/// The log of a process that chooses a network with these variables.
fn log_of(test: &str, variables: &[(&str, &str)]) -> String {
    let outcome = Job::this_test(test, 1).with(variables).allow_any_warning().run();
    outcome.assert_ok();
    outcome.ranks[0].stdout.clone()
}

/// Chooses by the variables of the process.
fn choose_here() {
    let params = nccl::params::snapshot();
    nccl::log::install();
    let selection = NetSelection {
        name: params.text(nccl::params::NET),
        plugins: params.text(nccl::params::NET_PLUGIN),
        ..NetSelection::default()
    };
    let network = choose(&selection).expect("sockets are always there");
    drop(network);
}

#[test]
fn what_the_log_says() {
    if launch::child().is_some() {
        return choose_here();
    }
    let test = "choice::what_the_log_says";
    let folder = Folder::new("short-name");
    let Some(()) = compile(10, &folder.join("libnccl-net-short.so"), &["WITH_COLLNET"]) else { return };
    let path = crate::common::join_library_path(&[folder.path().to_path_buf()]);
    let path = path.to_str().expect("UTF-8");
    let log = log_of(test, &[("NCCL_DEBUG", "INFO"), ("NCCL_NET_PLUGIN", "short"), ("LD_LIBRARY_PATH", path)]);
    let file = folder.join("libnccl-net-short.so").display().to_string();
    for line in [
        "NET/Plugin: Loaded net plugin Test (v10)",
        "NET/Plugin: Test has CollNet (v10): it is not used",
        &format!("Successfully loaded external network plugin {file}"),
        "Initialized NET plugin Test",
        "Assigned NET plugin Test to comm",
        "Using network Test",
    ] {
        assert!(log.lines().any(|said| said.ends_with(line)), "`{line}` is missing in\n{log}");
    }
    let long = format!("a long line: {} 7", "x".repeat(5000));
    assert!(log.lines().any(|said| said.ends_with(&long)), "the plug-in's own line is missing in\n{log}");

    let asked = [("NCCL_DEBUG", "INFO"), ("NCCL_NET_PLUGIN", "nowhere,/no/such.so")];
    let log = log_of(test, &asked);
    for line in
        ["NET/Plugin: Could not find: nowhere libnccl-net-nowhere.so", "NET/Plugin: Could not find: /no/such.so"]
    {
        assert!(log.lines().any(|said| said.ends_with(line)), "`{line}` is missing in\n{log}");
    }
    assert!(
        log.contains("NCCL ATTN no plug-in of NCCL_NET_PLUGIN is used (nowhere: there is no such library;"),
        "{log}"
    );

    let log = log_of(test, &[("NCCL_DEBUG", "INFO")]);
    assert!(log.lines().any(|said| said.ends_with("NET/Plugin: Could not find: libnccl-net.so")), "{log}");
}

#[test]
fn a_plugins_warning_is_shown_and_is_the_last_error() {
    if launch::child().is_some() {
        choose_here();
        return println!("last error: {}", nccl::log::last_error_text());
    }
    let folder = Folder::new("warning");
    let file = folder.join("broken.so");
    let Some(()) = compile(7, &file, &[]) else { return };
    let file = file.display().to_string();
    let test = "choice::a_plugins_warning_is_shown_and_is_the_last_error";
    let log = log_of(test, &[("NCCL_DEBUG", "WARN"), ("NCCL_NET_PLUGIN", &file), ("PLUGIN_FAULT", "init:1:2")]);
    let line = log.lines().find(|line| line.contains("NCCL WARN")).expect("a warning");
    assert!(line.contains("net_plugin.c:") && line.ends_with(" NCCL WARN init fails as it was told: 2"), "{line}");
    assert!(!line.contains('('), "plug-ins say no function: {line}");
    assert!(log.contains("last error: init fails as it was told: 2"), "{log}");
}

/// Whether a file is mapped into this process.
fn is_loaded(file: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps").expect("the kernel's list").contains(file)
}

#[test]
fn a_communicator_without_a_wish_stays_with_the_first_that_worked() {
    if launch::child().is_some() {
        let params = nccl::params::snapshot();
        let list = params.text(nccl::params::NET_PLUGIN).expect("it is set").to_string();
        let (first, second) = list.split_once(',').expect("two plug-ins");
        assert_eq!(chosen(None, Some(second)).unwrap(), "Test");
        assert_eq!(chosen(None, Some(&list)).unwrap(), "Test");
        assert!(is_loaded(second) && !is_loaded(first));
        // Where it is not in the list, and where a name is asked for, others are tried.
        assert_eq!(chosen(Some("test"), Some(&list)).unwrap(), "Test");
        assert!(is_loaded(first));
        return;
    }
    let folder = Folder::new("two");
    let files = [9, 11].map(|version| folder.join(&format!("v{version}.so")));
    let Some(()) = compile(9, &files[0], &[]) else { return };
    let Some(()) = compile(11, &files[1], &[]) else { return };
    let list = files.map(|file| file.display().to_string()).join(",");
    let job = Job::this_test("choice::a_communicator_without_a_wish_stays_with_the_first_that_worked", 1);
    job.env("NCCL_NET_PLUGIN", list).run().assert_ok();
}
