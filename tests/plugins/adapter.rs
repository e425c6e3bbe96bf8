//! Plug-ins of every version, as networks.

use nccl::error::{Code, Error};
use nccl::plugin::network::{NetBuffer, NetMemory, NetProperties, PLUGIN_HANDLE_BYTES};

use crate::plugin::{TestPlugin, VERSIONS};
use crate::traffic::{Slots, connect, exchange, lengths};

/// The plug-ins of all versions.
fn all() -> Option<Vec<TestPlugin>> {
    VERSIONS.into_iter().map(TestPlugin::new).collect()
}

/// How many messages tests have under way: as many as a link has slots, and all that version 6 can.
const AHEAD: usize = 8;

#[test]
fn messages_arrive_whole_and_in_order() {
    let Some(plugins) = all() else { return };
    for plugin in plugins {
        let network = plugin.network();
        let names: Vec<_> = network.devices().iter().map(|device| (device.name.as_str(), device.guid)).collect();
        assert_eq!(names, [("test0", 40), ("test1", 41)]);
        assert_eq!(network.devices()[1].max_bytes, if plugin.version < 9 { 1 << 30 } else { 1 << 31 });
        for devices in [(0, 0), (0, 1), (1, 0)] {
            exchange(connect(&*network, devices).unwrap(), &lengths(), AHEAD).unwrap();
        }
        drop(network);
        plugin.assert_clean();
        let count = |name| plugin.count(name);
        let pairs = [("regMr", "deregMr"), ("connected", "closeSend"), ("accepted", "closeRecv"), ("sent", "received")];
        for (made, ended) in pairs.into_iter().chain([("listen", "closeListen")]) {
            assert!(count(made) > 0 && count(made) == count(ended), "{made} {}, {ended} {}", count(made), count(ended));
        }
        assert_eq!((count("connected"), count("isend")), (3, 84));
    }
}

#[test]
fn old_versions_are_initialised_once_and_new_ones_for_each_communicator() {
    let Some(plugins) = all() else { return };
    for plugin in plugins {
        let (first, second) = (plugin.network(), plugin.network());
        drop(first);
        exchange(connect(&*second, (0, 1)).unwrap(), &[5], 1).unwrap();
        drop(second);
        // A communicator after the last one finds the plug-in as it was.
        drop(plugin.network());
        let each = if plugin.version < 11 { (1, 0) } else { (3, 3) };
        assert_eq!((plugin.count("init"), plugin.count("finalize")), each, "v{}", plugin.version);
        assert_eq!((plugin.count("devices"), plugin.count("getProperties")), (1, 2));
        plugin.assert_clean();
    }
}

#[test]
fn a_connection_keeps_the_plugin_until_it_is_closed() {
    let Some(plugin) = TestPlugin::new(12) else { return };
    let network = plugin.network();
    let pair = connect(&*network, (0, 0)).unwrap();
    let listener = network.listen(1).unwrap();
    drop(network);
    assert_eq!(plugin.count("finalize"), 0);
    exchange(pair, &[100], 1).unwrap();
    drop(listener);
    assert_eq!(plugin.count("finalize"), 1);
    plugin.assert_clean();
}

#[test]
fn what_comes_later_is_asked_for_again() {
    let Some(plugins) = all() else { return };
    for plugin in plugins {
        let network = plugin.network();
        plugin.fault("connect:1+20:later,accept:1+10:later,isend:3+50:later,irecv:2+30:later,test:1+40:later");
        exchange(connect(&*network, (0, 1)).unwrap(), &[64; 30], AHEAD).unwrap();
        assert!(plugin.count("isend") >= 80 && plugin.count("irecv") >= 60 && plugin.count("connect") >= 21);
        drop(network);
        plugin.assert_clean();
    }
}

/// What a plug-in that fails is blamed for.
fn blamed(plugin: &TestPlugin, fault: &str, result: Result<(), Error>) -> Error {
    let (function, code) = fault.split_once(':').expect("function and call");
    let code: i32 = code.rsplit(':').next().and_then(|code| code.parse().ok()).expect("a code");
    let error = result.expect_err(fault);
    let text = error.to_string();
    let named = format!("NET/Plugin: Test (v{}): {function} returned {code} (nccl", plugin.version);
    assert!(text.contains(&named), "{fault}: {text}");
    assert!(text.ends_with(&format!("{function} fails as it was told: {code}")), "the plug-in's own words: {text}");
    error
}

#[test]
fn a_call_that_fails_is_named_with_its_code_and_the_plugins_own_words() {
    let Some(plugins) = all() else { return };
    let faults = [
        ("listen:1:2", Code::System),
        ("connect:1:6", Code::Remote),
        ("accept:1:3", Code::Internal),
        ("regMr:1:2", Code::System),
        ("regMr:2:1", Code::UnhandledCuda),
        ("isend:17:6", Code::Remote),
        ("irecv:9:4", Code::InvalidArgument),
        ("test:30:5", Code::InvalidUsage),
        ("test:31:8", Code::Timeout),
    ];
    for plugin in plugins {
        let network = plugin.network();
        for (fault, code) in faults {
            plugin.fault(fault);
            let result = connect(&*network, (0, 1)).and_then(|pair| exchange(pair, &[1000; 30], AHEAD));
            assert_eq!(blamed(&plugin, fault, result).code(), code);
        }
        plugin.fault("");
        exchange(connect(&*network, (1, 1)).unwrap(), &[9], 1).unwrap();
        drop(network);
        // What was begun by a connect or accept that has failed stays with the plug-in.
        assert_eq!(plugin.count("misuse"), 0);
    }
}

#[test]
fn what_fails_at_the_end_changes_nothing() {
    let Some(plugin) = TestPlugin::new(11) else { return };
    let network = plugin.network();
    plugin.fault("deregMr:1:3,closeSend:1:3,closeRecv:1:6,closeListen:1:2,finalize:1:3");
    exchange(connect(&*network, (0, 1)).unwrap(), &[9], 1).unwrap();
    drop(network);
    assert_eq!(plugin.count("finalize"), 1);
}

#[test]
fn a_plugin_that_says_nonsense_is_not_believed() {
    let Some(plugin) = TestPlugin::new(10) else { return };
    let network = plugin.network();
    // The sender's end is tested, too, whose length nobody reads.
    plugin.fault("test:1+500:big");
    let error = connect(&*network, (0, 1)).and_then(|pair| exchange(pair, &[64; 4], 4)).unwrap_err();
    assert!(error.to_string().contains("it says that 65 bytes came into memory of 64"), "{error}");
}

#[test]
fn messages_that_a_version_cannot_express_are_refused() {
    let Some(plugins) = all() else { return };
    let long = (1usize << 30) + 1;
    for plugin in plugins.into_iter().filter(|plugin| plugin.version <= 8) {
        let network = plugin.network();
        let (mut sender, mut receiver) = connect(&*network, (0, 1)).unwrap();
        let (mut from, mut into) = (Slots::new(&mut *sender, 1, 8).unwrap(), Slots::new(&mut *receiver, 1, 8).unwrap());
        let (sent, received) = (from.buffer(0, 8), into.buffer(0, 8));
        // SAFETY: nothing is begun.
        let results = unsafe {
            [
                sender.send(NetBuffer { bytes: long, ..sent }).map(drop),
                receiver.receive(NetBuffer { bytes: long, ..received }).map(drop),
            ]
        };
        for result in results {
            let error = result.unwrap_err();
            assert!(error.code() == Code::Internal && error.to_string().contains("1073741825 bytes"), "{error}");
        }
        if plugin.version < 8 {
            let memory = NetMemory { address: sent.address, bytes: long, kind: NetProperties::HOST };
            // SAFETY: nothing is registered.
            let error = unsafe { sender.register(memory) }.unwrap_err();
            assert!(error.to_string().contains("regMr returned 3"), "{error}");
        }
        drop((sender, receiver, network));
        plugin.assert_clean();
    }
}

#[test]
fn a_handle_that_is_none() {
    let Some(plugin) = TestPlugin::new(9) else { return };
    let network = plugin.network();
    let error = network.connect(0, &[0; PLUGIN_HANDLE_BYTES + 1]).err().expect("too long");
    assert!(error.code() == Code::Remote && error.to_string().contains("a handle has 128 bytes"), "{error}");
    let mut connecting = network.connect(0, &[7; PLUGIN_HANDLE_BYTES]).expect("the plug-in has not looked yet");
    let error = connecting.connect().err().expect("the plug-in looks");
    assert!(error.to_string().ends_with("connect returned 4 (ncclInvalidArgument): a handle that is none"), "{error}");
    let error = network.listen(2).err().expect("there are two devices");
    assert!(error.to_string().contains("has 2 devices, and no device 2"), "{error}");
}

#[test]
fn no_more_is_under_way_than_a_plugin_can_take() {
    for (version, most) in [(6, 8), (9, 32)] {
        let Some(plugin) = TestPlugin::new(version) else { return };
        let network = plugin.network();
        let (sender, mut receiver) = connect(&*network, (0, 1)).unwrap();
        let mut into = Slots::new(&mut *receiver, 40, 8).unwrap();
        // SAFETY: the slots outlive the connection.
        let begun = (0..40).filter(|slot| unsafe { receiver.receive(into.buffer(*slot, 8)) }.unwrap().is_some());
        assert_eq!(begun.count(), most);
        drop((sender, receiver, network));
        plugin.assert_clean();
    }
}
