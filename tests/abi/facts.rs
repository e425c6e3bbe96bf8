//! The header and the Rust side of the boundary against what NVIDIA's headers declare (facts.cc).

use std::collections::BTreeMap;
use std::mem::offset_of;

use nccl::abi::types;

use crate::common::need;
use crate::tool::{self, Folder, Headers};

const FLAGS: &str =
    "-std=c++17 -Wall -Wextra -Werror -Wno-invalid-offsetof -Wno-deprecated-declarations -DNCCL_OS_LINUX";

fn facts(headers: &Headers, flags: &str) -> String {
    let folder = Folder::new();
    let program = folder.path("facts");
    tool::compile("c++", flags, headers, "tests/abi/facts.cc", &program, &[]);
    tool::stdout(&tool::output(tool::command(&program, &program, &[], &[])))
}

fn expected() -> String {
    tool::text("tests/abi/facts.expected")
}

#[test]
fn our_header_declares_what_nvidias_does() {
    let Some(()) = tool::compilers() else { return };
    let (ours, theirs) = (facts(&Headers::Ours, &format!("{FLAGS} -pedantic")), expected());
    for (our, their) in ours.lines().zip(theirs.lines()) {
        assert_eq!(our, their);
    }
    assert_eq!(ours, theirs);
}

#[test]
fn the_expected_facts_are_those_of_nvidias_headers() {
    let (Some(()), Some(home)) = (tool::compilers(), tool::nvidia()) else { return };
    assert_eq!(facts(&Headers::Nvidia(home), FLAGS), expected());
}

/// Compiles the header alone, as C and as C++ of several years.
fn compile_header(headers: &Headers) {
    let folder = Folder::new();
    for (compiler, language) in [("cc", "c99"), ("cc", "c11"), ("cc", "c17"), ("c++", "c++11"), ("c++", "c++17")] {
        for system in ["", "-DNCCL_OS_LINUX"] {
            let flags = format!("-std={language} -Wall -Wextra -pedantic -Werror -c {system}");
            let program = if compiler == "cc" { "tests/abi/header.c" } else { "tests/abi/header.cc" };
            tool::compile(compiler, &flags, headers, program, &folder.path("header.o"), &[]);
        }
    }
}

#[test]
fn the_header_is_clean_c_and_cpp() {
    let Some(()) = tool::compilers() else { return };
    compile_header(&Headers::Ours);
}

#[test]
fn the_header_is_clean_on_nvidias_cuda_headers() {
    let how = "scripts/install-cuda-headers.sh prints it";
    let (Some(()), Some(home)) = (tool::compilers(), need::path_in("OXCCL_CUDA_HOME", how)) else { return };
    compile_header(&Headers::OnNvidiasCuda(home));
}

/// `field a.b at n` and `size a n align m` of the expected facts.
fn layout() -> BTreeMap<String, usize> {
    let text = expected();
    let mut facts = BTreeMap::new();
    for words in text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>()) {
        match words[..] {
            ["field", name, "at", n] => drop(facts.insert(name.to_string(), n.parse().expect("a number"))),
            ["size", name, n, ..] => drop(facts.insert(name.to_string(), n.parse().expect("a number"))),
            _ => {}
        }
    }
    facts
}

#[test]
fn the_structs_of_the_boundary_have_the_layout_of_c() {
    let facts = layout();
    let check = |name: &str, found: usize| assert_eq!(facts.get(name), Some(&found), "{name}");
    macro_rules! same {
        ($($rust:ident = $c:literal { $($field:tt = $c_field:literal),* })*) => { $(
            check($c, size_of::<types::$rust>());
            $( check(concat!($c, ".", $c_field), offset_of!(types::$rust, $field)); )*
        )* };
    }
    same! {
        UniqueId = "ncclUniqueId" { 0 = "internal" }
        RawConfig = "ncclConfig_t" {
            size = "size", magic = "magic", version = "version", blocking = "blocking",
            cga_cluster_size = "cgaClusterSize",
            min_ctas = "minCTAs", max_ctas = "maxCTAs", net_name = "netName", split_share = "splitShare",
            traffic_class = "trafficClass", comm_name = "commName", collnet_enable = "collnetEnable",
            cta_policy = "CTAPolicy", shrink_share = "shrinkShare", nvls_ctas = "nvlsCTAs",
            channels_per_net_peer = "nChannelsPerNetPeer", nvlink_centric_sched = "nvlinkCentricSched",
            graph_usage_mode = "graphUsageMode", num_rma_ctx = "numRmaCtx", max_p2p_peers = "maxP2pPeers",
            graph_stream_ordering = "graphStreamOrdering", launch_order_implicit = "launchOrderImplicit",
            num_rma_sig = "numRmaSig", rma_eager_init = "rmaEagerInit", host_cft_mode = "hostCftMode",
            nvls_host_mode = "nvlsHostMode"
        }
        RawCollConfig = "ncclCollConfig_t" {
            size = "size", magic = "magic", version = "version", ext = "ext", min_ctas = "minCTAs",
            max_ctas = "maxCTAs", nvls_ctas = "nvlsCTAs", cga_cluster_size = "cgaClusterSize",
            alg_selection = "algSelection", force_alg_selection = "forceAlgSelection", cta_policy = "CTAPolicy",
            user_profiler_tag = "userProfilerTag",
            launch_completion_event = "launchCompletionEvent"
        }
        SimInfo = "ncclSimInfo_t" {
            size = "size", magic = "magic", version = "version", estimated_time = "estimatedTime"
        }
        WaitSignalDesc = "ncclWaitSignalDesc_t" {
            op_count = "opCnt", peer = "peer", signal = "sigIdx", context = "ctx"
        }
        EncryptionConfig = "ncclEncryptionConfig_t" { size = "size", magic = "magic", mode = "mode", psk = "psk" }
        Team = "ncclTeam_t" { nranks = "nRanks", rank = "rank", stride = "stride" }
        LsaBarrierHandle = "ncclLsaBarrierHandle_t" { buffer = "bufHandle", barriers = "nBarriers" }
        GinBarrierHandle = "ncclGinBarrierHandle_t" { signal0 = "signal0" }
        LlA2aHandle = "ncclLLA2AHandle_t" { buffer = "bufHandle", slots = "nSlots" }
        ResourceRequirements = "ncclDevResourceRequirements_t" {
            next = "next", buffer_size = "bufferSize", buffer_align = "bufferAlign",
            out_buffer_handle = "outBufferHandle",
            gin_signal_count = "ginSignalCount", gin_counter_count = "ginCounterCount",
            out_gin_signal_start = "outGinSignalStart", out_gin_counter_start = "outGinCounterStart"
        }
        Properties = "ncclCommProperties_t" {
            rank = "rank", nranks = "nRanks", cuda_device = "cudaDev", nvml_device = "nvmlDev",
            device_api_support = "deviceApiSupport", multimem_support = "multimemSupport", gin_type = "ginType",
            lsa_teams = "nLsaTeams", host_rma_support = "hostRmaSupport", railed_gin_type = "railedGinType",
            comm_hash = "commHash", gin_min_stride = "ginMinStride", gin_connection_type = "ginConnectionType",
            gin_support = "ginSupport", dev_comm_runtime_version_size = "devCommRuntimeVersionSize",
            cft_support = "cftSupport", cft_multicast_support = "cftMulticastSupport",
            cft_counted_support = "cftCountedSupport"
        }
    }
    assert_eq!(facts["ncclDevComm_t"], 248);
}

/// The names that no public header has: debugging, and scratch of NCCL's own kernels.
const UNDECLARED: [&str; 3] =
    ["ncclResetDebugInitInternal", "ncclGinOutboxCreateRequirement", "ncclGinInboxA2ACreateRequirement"];

/// Writes what prototypes.cc includes: the prototypes of the functions in src/abi/, and the names to compare.
fn write_prototypes(folder: &Folder) {
    let config = cbindgen::Config::from_file(tool::source("cbindgen.toml")).expect("cbindgen.toml");
    let files = std::fs::read_dir(tool::source("src/abi")).expect("src/abi");
    let mut files: Vec<_> = files.map(|f| f.expect("an entry").path()).collect();
    files.sort();
    let builder = cbindgen::Builder::new().with_config(config);
    let bindings = files.into_iter().fold(builder, cbindgen::Builder::with_src).generate().expect("readable sources");
    let mut prototypes = Vec::new();
    bindings.write(&mut prototypes);
    folder.write("prototypes.h", prototypes);
    let symbols = tool::text("tests/abi/symbols.expected");
    let names = symbols.lines().filter_map(|l| l.split(' ').nth(1)).filter(|n| n.starts_with("nccl"));
    let names: Vec<String> = names.filter(|n| !UNDECLARED.contains(n)).map(|n| format!("SAME({n});\n")).collect();
    assert_eq!(names.len(), 94);
    folder.write("names.h", names.concat());
}

/// Compiles the prototypes of the library's functions with headers that declare them.
fn compile_prototypes(headers: &Headers) {
    let folder = Folder::new();
    write_prototypes(&folder);
    let flags = format!("{FLAGS} -c -I {}", folder.path("").display());
    tool::compile("c++", &flags, headers, "tests/abi/prototypes.cc", &folder.path("prototypes.o"), &[]);
}

#[test]
fn the_functions_of_the_boundary_are_those_of_the_header() {
    let Some(()) = tool::compilers() else { return };
    compile_prototypes(&Headers::Ours);
}

#[test]
fn the_functions_of_the_boundary_are_those_of_nvidias_headers() {
    let (Some(()), Some(home)) = (tool::compilers(), tool::nvidia()) else { return };
    compile_prototypes(&Headers::Nvidia(home));
}
