use super::*;
use proptest::prelude::*;

fn environment(variables: &[(&str, &str)]) -> Snapshot {
    let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
    Snapshot::of(find)
}

fn resolve(change: impl FnOnce(&mut ConfigRequest)) -> Result<Config, Error> {
    let mut request = ConfigRequest::default();
    change(&mut request);
    Config::resolve(request, &environment(&[]))
}

/// The resolved defaults.
#[test]
fn nothing_gives_the_defaults() {
    assert_eq!(resolve(|_| ()).unwrap(), Config::default());
    let config = resolve(|r| (r.min_ctas, r.blocking, r.traffic_class) = (4, 0, 7)).unwrap();
    assert_eq!((config.min_ctas, config.max_ctas), (4, 64));
    assert!(!config.blocking && config.graph_stream_ordering && !config.launch_order_implicit);
    assert_eq!(config.traffic_class, Some(7));
}

/// Fields that the version of the caller did not have.
#[test]
fn fields_are_believed_from_their_version_on() {
    type Field = fn(&mut ConfigRequest) -> &mut i32;
    let first: [(u32, Field); 18] = [
        (21400, |r| &mut r.blocking),
        (21700, |r| &mut r.cga_cluster_size),
        (21700, |r| &mut r.min_ctas),
        (21700, |r| &mut r.max_ctas),
        (22700, |r| &mut r.collnet_enable),
        (22700, |r| &mut r.cta_policy),
        (22700, |r| &mut r.shrink_share),
        (22700, |r| &mut r.nvls_ctas),
        (22800, |r| &mut r.channels_per_net_peer),
        (22800, |r| &mut r.nvlink_centric_sched),
        (22900, |r| &mut r.graph_usage_mode),
        (22900, |r| &mut r.num_rma_ctx),
        (23000, |r| &mut r.max_p2p_peers),
        (23005, |r| &mut r.graph_stream_ordering),
        (23100, |r| &mut r.launch_order_implicit),
        (23100, |r| &mut r.num_rma_sig),
        (23100, |r| &mut r.rma_eager_init),
        (23100, |r| &mut r.host_cft_mode),
    ];
    // -77 is no value of any of them.
    for (version, field) in first {
        let with = |version| {
            resolve(|r| {
                r.version = version;
                *field(r) = -77;
            })
        };
        assert!(with(version).is_err(), "believed at {version}");
        assert_eq!(with(version - 1), Ok(Config::default()), "not before {version}");
    }
    assert_eq!(resolve(|r| (r.version, r.traffic_class) = (22499, 5)).unwrap().traffic_class, None);
    assert!(resolve(|r| (r.version, r.nvls_host_mode) = (0, -77)).is_err(), "nvlsHostMode has no gate");
}

#[test]
fn the_environment_wins() {
    let variables = [
        ("NCCL_COMM_BLOCKING", "0"),
        ("NCCL_CGA_CLUSTER_SIZE", "99"),
        ("NCCL_MIN_CTAS", "3"),
        ("NCCL_MAX_CTAS", "200"),
        ("NCCL_NET", "Socket"),
        ("NCCL_CTA_POLICY", "EFFICIENCY|ZERO"),
        ("NCCL_GRAPH_MIXING_SUPPORT", "0"),
        ("NCCL_GRAPH_STREAM_ORDERING", "0"),
        ("NCCL_LAUNCH_ORDER_IMPLICIT", "7"),
        ("NCCL_NVLS_NCHANNELS", "6"),
        ("NCCL_NUM_RMA_CTX", "0"),
        ("NCCL_RMA_EAGER_INIT", "1"),
    ];
    let request =
        ConfigRequest { blocking: 1, min_ctas: 9, net_name: Some("IB".to_string()), ..ConfigRequest::default() };
    let config = Config::resolve(request, &environment(&variables)).unwrap();
    assert!(!config.blocking && config.rma_eager_init && !config.launch_order_implicit);
    assert_eq!((config.cga_cluster_size, config.min_ctas, config.max_ctas), (8, 3, 64));
    assert_eq!(config.net_name.as_deref(), Some("Socket"));
    assert_eq!(config.cta_policy, ZERO);
    assert_eq!((config.graph_usage_mode, config.graph_stream_ordering), (0, false));
    assert_eq!((config.nvls_ctas, config.num_rma_ctx), (Some(6), 0));
}

#[test]
fn what_does_not_fit_together_is_made_to() {
    let config = resolve(|r| (r.min_ctas, r.graph_stream_ordering) = (100, 0)).unwrap();
    assert_eq!((config.min_ctas, config.max_ctas), (64, 64));
    assert!(config.graph_stream_ordering, "graphUsageMode 2 needs it");
    let small =
        Config::resolve(ConfigRequest::default(), &environment(&[("NCCL_MAX_CTAS", "2"), ("NCCL_MIN_CTAS", "5")]))
            .unwrap();
    assert_eq!((small.min_ctas, small.max_ctas), (2, 2));
}

#[test]
fn a_child_starts_from_its_parent() {
    let parent = Config { min_ctas: 3, comm_name: Some("a".to_string()), ..Config::default() };
    let child =
        Config::resolve_over(&parent, ConfigRequest { max_ctas: 7, ..ConfigRequest::default() }, &environment(&[]))
            .unwrap();
    assert_eq!(child, Config { max_ctas: 7, ..parent });
}

fn call() -> CollRequest {
    CollRequest {
        magic: MAGIC,
        min_ctas: UNDEF,
        max_ctas: UNDEF,
        nvls_ctas: UNDEF,
        cga_cluster_size: UNDEF,
        selection: None,
        force_selection: 1,
        cta_policy: UNDEF,
        profiler_tag: 0,
        launch_completion_event: 0,
    }
}

/// Magic, forceAlgSelection, CTAPolicy, in this order.
#[test]
fn a_calls_configuration_is_checked_in_order() {
    let text = |r: CollRequest| CollConfig::resolve(r).unwrap_err().to_string();
    let wrong = CollRequest { magic: 1, force_selection: 5, cta_policy: 9, ..call() };
    assert!(text(wrong.clone()).contains("magic 0x1"));
    assert!(text(CollRequest { magic: MAGIC, ..wrong.clone() }).contains("forceAlgSelection"));
    assert!(text(CollRequest { magic: MAGIC, force_selection: 0, ..wrong }).contains("CTAPolicy"));
    let odd =
        CollConfig::resolve(CollRequest { min_ctas: 0, max_ctas: 65, nvls_ctas: 64, cga_cluster_size: 9, ..call() })
            .unwrap();
    assert_eq!((odd.min_ctas, odd.max_ctas, odd.nvls_ctas, odd.cga_cluster_size), (None, None, Some(64), None));
    assert_eq!(odd.algorithms(Func::AllReduce), Ok(None));
}

proptest! {
    #[test]
    fn whatever_is_accepted_is_in_range(
        version in any::<u32>(),
        ctas in any::<[i32; 2]>(),
        other in any::<[i32; 4]>(),
    ) {
        let found = resolve(|r| {
            r.version = version;
            [r.min_ctas, r.max_ctas] = ctas;
            [r.blocking, r.cta_policy, r.graph_usage_mode, r.nvls_host_mode] = other;
        });
        if let Ok(config) = found {
            prop_assert!(1 <= config.min_ctas && config.min_ctas <= config.max_ctas && config.max_ctas <= MAX_CHANNELS);
            prop_assert!((0..=3).contains(&config.cta_policy) && (0..=2).contains(&config.graph_usage_mode));
        }
    }
}
