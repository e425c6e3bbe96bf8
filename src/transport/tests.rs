use super::*;

fn facts(rank: u32) -> PeerFacts {
    let host = HostFacts { name: "a".into(), boot_id: "b".into(), network_namespace: 1, pid_namespace: 2, pid: 100 + rank };
    PeerFacts {
        rank,
        host,
        process: u64::from(rank),
        device: rank as i32,
        uuid: [rank as u8; 16],
        bus_id: u64::from(rank),
        capability: 90,
        reachable: (0..4).map(|device| [device; 16]).collect(),
        linked: Vec::new(),
        post: [rank as u8; 16],
        p2p_disabled: false,
        shm_disabled: false,
        channels: 1,
        slot_bytes: 4096,
        proto: 0,
    }
}

fn label(a: &PeerFacts, b: &PeerFacts) -> Result<&'static str, String> {
    let forth = choose(a, b).map(|transport| transport.label()).map_err(|error| error.to_string());
    let back = choose(b, a).map(|transport| transport.label()).map_err(|error| error.to_string());
    assert_eq!(forth.is_ok(), back.is_ok(), "both ranks must come to the same answer");
    if let (Ok(forth), Ok(back)) = (&forth, &back) {
        assert_eq!(forth, back, "both ranks must come to the same answer");
    }
    forth
}

#[test]
fn processes_of_one_host_use_peer_memory() {
    assert_eq!(label(&facts(0), &facts(1)), Ok("P2P/IPC"));
}

#[test]
fn threads_of_one_process_use_pointers() {
    let (a, mut b) = (facts(0), facts(1));
    b.process = a.process;
    b.host.pid = a.host.pid;
    assert_eq!(label(&a, &b), Ok("P2P/direct pointer"));
}

#[test]
fn one_side_without_peer_access_means_shared_memory() {
    let (a, mut b) = (facts(0), facts(1));
    b.reachable = vec![b.uuid];
    assert_eq!(label(&a, &b), Ok("SHM/direct"));
    let (a, mut b) = (facts(0), facts(1));
    b.p2p_disabled = true;
    assert_eq!(label(&a, &b), Ok("SHM/direct"));
}

#[test]
fn processes_that_cannot_see_each_other_do_not_use_inter_process_handles() {
    let (a, mut b) = (facts(0), facts(1));
    b.host.pid_namespace = 77;
    assert_eq!(label(&a, &b), Ok("SHM/direct"));
}

#[test]
fn without_a_transport_the_error_says_why() {
    let (a, mut b) = (facts(0), facts(1));
    b.host.name = "other".into();
    let text = label(&a, &b).expect_err("different hosts");
    assert!(text.contains("rank 0 and rank 1") && text.contains("a and other"), "{text}");
    let (mut a, mut b) = (facts(0), facts(1));
    (a.shm_disabled, b.p2p_disabled) = (true, true);
    let text = label(&a, &b).expect_err("both ways are switched off");
    assert!(text.contains("NCCL_SHM_DISABLE"), "{text}");
    let (a, mut b) = (facts(0), facts(1));
    (b.host.network_namespace, b.host.pid_namespace) = (77, 78);
    let text = label(&a, &b).expect_err("two containers");
    assert!(text.contains("network namespaces"), "{text}");
}

#[test]
fn offers_survive_their_encoding_and_garbage_does_not_crash() {
    let offers = [Offer::SameProcess(7), Offer::Ipc(vec![1; 64]), Offer::Shared { key: 1, bytes: 2 }];
    for offer in offers {
        let bytes = postcard::to_stdvec(&offer).expect("encode");
        assert_eq!(postcard::from_bytes::<Offer>(&bytes).expect("decode"), offer);
        for end in 0..bytes.len() {
            assert!(postcard::from_bytes::<Offer>(&bytes[..end]).is_err());
        }
    }
}
