use super::line::{LogContext, Place, render, short_file, short_host, short_module};
use super::settings::{LineKind, LogSettings, mask, subsystems};
use super::sink::expand;
use super::stamp::show;
use super::{LEVELS, SUBSYSTEMS, lines};
use chrono::{Local, TimeZone, Timelike};
use proptest::prelude::*;

fn settings(variables: &[(&str, &str)]) -> LogSettings {
    LogSettings::read(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string()))
}

/// The layouts, as NCCL writes them.
#[test]
fn layouts() {
    let context = LogContext { host: "vm", pid: 13381, thread: 13382, device: 0, uptime_ms: 12.5 };
    let place = Place { file: "group.cc", line: 776, function: "ncclGroupEndInternal" };
    let line = |kind, stamp, text| render(kind, stamp, &context, &place, text);
    assert_eq!(
        line(LineKind::Warn, "[2026-11-29 10:56:17] ", "ncclGroupEnd: not in a group call."),
        "\n[2026-11-29 10:56:17] vm:13381:13382 [0] group.cc:776 (ncclGroupEndInternal) NCCL WARN ncclGroupEnd: not in a group call.\n"
    );
    assert_eq!(
        line(LineKind::Info, "", "Bootstrap: Using eth0:192.0.2.2<0>"),
        "vm:13381:13382 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.2<0>\n"
    );
    assert_eq!(line(LineKind::Version, "", "NCCL version 2.32.3+cuda13.0"), "NCCL version 2.32.3+cuda13.0\n");
    assert_eq!(line(LineKind::Trace, "", "ncclGroupStart()"), "vm:13381:13382 NCCL CALL ncclGroupStart()\n");
    assert_eq!(
        line(LineKind::Trace, "", "posted 3"),
        "vm:13381:13382 [0] 12.500000 ncclGroupEndInternal:776 NCCL TRACE posted 3\n"
    );
    assert!(line(LineKind::Attn, "", "x").contains(" (ncclGroupEndInternal) NCCL ATTN x\n"));
    assert_eq!(short_file("/build/oxccl/src/comm/init.rs"), "comm/init.rs");
    assert_eq!(short_module("nccl::comm::init"), "comm::init");
    assert_eq!(short_host("a%b/c.example.org"), "a-b-c");
}

#[test]
fn lines_that_people_look_for() {
    let line = lines::CommLine {
        function: "ncclCommInitRank",
        comm: 0x55ab,
        rank: 1,
        nranks: 4,
        cuda_device: 1,
        nvml_device: 5,
        bus_id: 0x41000,
        hash: 0xdead_beef,
        origin: None,
    };
    let who = "ncclCommInitRank comm 0x55ab rank 1 nranks 4 cudaDev 1 nvmlDev 5 busId 41000 commId 0xdeadbeef";
    assert_eq!(line.init_start(), format!("[Rank 1] {who} - Init START"));
    assert_eq!(line.init_complete(), format!("{who} - Init COMPLETE"));
    let origin = lines::OriginLine { parent: 0x77, count: 3, color: -2, key: 5 };
    let child = lines::CommLine { function: "ncclCommSplit", origin: Some(origin), ..line };
    let who = "ncclCommSplit comm 0x55ab rank 1 nranks 4 cudaDev 1 nvmlDev 5 busId 41000 parent 0x77 childCount 3 color -2 key 5";
    assert_eq!(child.init_start(), format!("{who}- Init START"));
    assert_eq!(child.init_complete(), format!("{who} - Init COMPLETE"));
    assert_eq!(
        line.revoke("COMPLETE, result 0"),
        "comm 0x55ab rank 1 nranks 4 cudaDev 1 busId 41000 - Revoke COMPLETE, result 0"
    );
    assert_eq!(line.abort_start(), "comm 0x55ab rank 1 nRanks 4 cudaDev 1 busId 41000 - Abort START");
    assert_eq!(line.gone("Destroy"), "comm 0x55ab rank 1 nranks 4 cudaDev 1 busId 41000 - Destroy COMPLETE");
    assert_eq!(lines::channel(3, Some(0), (0, 0), (1, 5), "P2P/IPC"), "Channel 03/0 : 0[0] -> 1[5] via P2P/IPC");
    assert_eq!(lines::channel(3, None, (0, 0), (1, 5), "SHM/direct"), "Channel 03 : 0[0] -> 1[5] via SHM/direct");
    let net = |sends| lines::net_channel(0, sends, (0, 0), (1, 0), "NET/Socket");
    assert_eq!(net(true), "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0");
    assert_eq!(net(false), "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0");
    assert_eq!(lines::ring(0, 24, &[0, 1, 2, 3]), "Channel 00/24 : 0 1 2 3");
}

/// Which kinds each word shows.
#[test]
fn levels() {
    let all = [LineKind::Version, LineKind::Warn, LineKind::Attn, LineKind::Info, LineKind::Trace];
    for (word, shown) in
        [("VERSION", 1), ("WARN", 2), ("ATTN", 3), ("INFO", 4), ("abort", 4), (" Trace ", 5), ("x", 0), ("", 0)]
    {
        let settings = settings(&[("NCCL_DEBUG", word)]);
        let count = all.iter().filter(|kind| settings.shows(**kind)).count();
        assert_eq!(count, shown, "{word}");
        assert!(all[..shown].iter().all(|kind| settings.shows(*kind)), "{word}");
    }
    let more = settings(&[("NCCL_DEBUG", "VERSION"), ("NCCL_DEBUG_LEVELS", "ATTN")]);
    assert!(more.shows(LineKind::Attn) && !more.shows(LineKind::Warn));
    assert_eq!(more.log_file(), None);
}

#[test]
fn lists_of_words() {
    assert_eq!(subsystems("INIT,BOOTSTRAP, env"), Some(0x1081));
    assert_eq!(subsystems("^NET"), Some(!0x10));
    assert_eq!(subsystems("NET,^INIT"), None);
    assert_eq!(subsystems("all"), Some(u64::MAX));
    assert_eq!(subsystems("NET,"), None);
    assert_eq!(mask("WARN,ATTN", &LEVELS), Some(68));
    assert_eq!(settings(&[]).subsystems, 0x1081);
    assert_eq!(settings(&[("NCCL_DEBUG_SUBSYS", "nonsense")]).subsystems, 0x1081);
}

#[test]
fn file_names() {
    assert_eq!(expand("/tmp/%p.%h.log", "vm", 7), "/tmp/7.vm.log");
    assert_eq!(expand("%h%p%%p%x%", "vm", 7), "vm7%p%x%");
}

#[test]
fn timestamps() {
    let time = Local.with_ymd_and_hms(2026, 11, 29, 10, 56, 17).unwrap().with_nanosecond(1_234_567).unwrap();
    assert_eq!(show("[%F %T] ", &time), "[2026-11-29 10:56:17] ");
    assert_eq!(show("%T.%3f", &time), "10:56:17.001");
    assert_eq!(show("%9f|%6f", &time), "001234567|%6f");
    assert_eq!(show("%F_%T", &time), "2026-11-29 10:56:17");
    assert_eq!(show("", &time), "");
    assert_eq!(show("%%%Q%0f%", &time), "%%Q%0f%");
    assert_eq!(show(&"y".repeat(256), &time), "");
}

proptest! {
    #[test]
    fn any_format_gives_a_short_timestamp(format in any::<String>()) {
        let time = Local.with_ymd_and_hms(2026, 2, 3, 4, 5, 6).unwrap();
        prop_assert!(show(&format, &time).len() < 256);
    }

    #[test]
    fn any_settings_are_read(word in any::<String>(), list in any::<String>()) {
        let variables = ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_LEVELS", "NCCL_DEBUG_TIMESTAMP_LEVELS"];
        let all = variables.map(|v| (v, if v == "NCCL_DEBUG" { word.as_str() } else { list.as_str() }));
        settings(&all);
    }

    #[test]
    fn a_list_of_subsystems_is_the_sum_of_its_words(chosen in proptest::sample::subsequence(&SUBSYSTEMS[..18], 1..18)) {
        let list = chosen.iter().map(|(word, _)| word.to_lowercase()).collect::<Vec<_>>().join(" , ");
        let sum = chosen.iter().map(|(_, bit)| bit).sum::<u64>();
        prop_assert_eq!(subsystems(&list), Some(sum));
    }

    #[test]
    fn a_file_name_keeps_what_it_does_not_know(pattern in "[^%]*") {
        prop_assert_eq!(expand(&pattern, "vm", 1), pattern);
    }
}
