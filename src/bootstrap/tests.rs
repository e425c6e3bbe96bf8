//! Ids and settings as text.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::config::{CommId, Family, InterfaceFilter};
use super::id::{Growth, IdParts, UniqueId, show};
use crate::error::Code;
use crate::secure::Secret;

fn parts() -> IdParts {
    IdParts {
        magic: 0x0102_0304_0506_0708,
        root: "10.20.30.40:4096".parse().unwrap(),
        fixed: false,
        token: 7,
        grow: None,
        secret: Secret::new([9; 32]),
    }
}

/// Magic and address stand where NVIDIA's library has them.
#[test]
fn an_id_has_the_address_where_nvidias_library_looks_for_it() {
    let id = parts().encode();
    assert_eq!(id.0[0..8], 0x0102_0304_0506_0708u64.to_ne_bytes());
    assert_eq!(id.0[8..16], [2, 0, 0x10, 0, 10, 20, 30, 40]);
    assert!(id.0[16..40].iter().all(|byte| *byte == 0));
    assert_eq!(&id.0[40..45], b"oxccl");
    let v6 = IdParts { root: "[2001:db8::7]:99".parse().unwrap(), fixed: true, ..parts() };
    let id = v6.encode();
    assert_eq!(id.0[8..12], [10, 0, 0, 99]);
    assert_eq!(id.0[16..32], "2001:db8::7".parse::<std::net::Ipv6Addr>().unwrap().octets());
    assert_eq!(IdParts::decode(&id), Ok(v6));
    let grow = IdParts { grow: Some(Growth { parent: u64::MAX - 1, count: 77 }), ..parts() };
    assert_eq!(IdParts::decode(&grow.encode()), Ok(grow.clone()));
    assert_eq!(parts().encode().hash64(), IdParts { secret: Secret::new([8; 32]), ..parts() }.encode().hash64());
    let mut damaged = grow.encode().0;
    damaged[100] = 1;
    assert_eq!(IdParts::decode(&UniqueId(damaged)).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn ids_of_others_are_told_apart() {
    let check = |id: [u8; 128]| IdParts::decode(&UniqueId(id)).unwrap_err();
    let mut nvidia = [0u8; 128];
    nvidia[0..40].copy_from_slice(&parts().encode().0[0..40]);
    let error = check(nvidia);
    assert_eq!(error.code(), Code::InvalidUsage);
    assert!(error.to_string().contains("not made by oxccl (it points to 10.20.30.40<4096>)"), "{error}");
    assert_eq!(check([0; 128]).code(), Code::InvalidArgument);
    assert_eq!(check([0xa5; 128]).code(), Code::InvalidArgument);
    let mut newer = parts().encode().0;
    newer[45] = 3;
    assert_eq!(check(newer).code(), Code::InvalidUsage);
    for at in [36, 46, 47, 56, 100, 127] {
        let mut damaged = parts().encode().0;
        damaged[at] = 0x80;
        assert_eq!(check(damaged).code(), Code::InvalidArgument, "byte {at}");
    }
}

#[test]
fn addresses_are_shown_as_nccl_does() {
    let text = |address: &str| show(address.parse::<SocketAddr>().unwrap());
    assert_eq!(text("10.0.0.1:0"), "10.0.0.1<0>");
    assert_eq!(text("[2001:db8::1]:80"), "2001:db8::1<80>");
}

/// NCCL's grammar of interface lists, with modifiers that users write in the wrong place.
#[test]
fn interface_lists_are_read() {
    let read = |text: &str| InterfaceFilter::parse(text);
    let names = |text: &str| read(text).0.unwrap().names;
    assert_eq!(names("eth0, eth1,,"), ["eth0", "eth1"]);
    let filter = read("^=a,b").0.unwrap();
    assert!(filter.exclude && filter.exact && filter.names == ["a", "b"]);
    assert!(!filter.allows("a") && filter.allows("ab"));
    for nothing in ["", " ", "^", "=", "^=", ",,"] {
        assert_eq!(read(nothing), (None, Vec::new()), "{nothing:?}");
    }
    let (filter, warnings) = read("^=mlx5_8,^=mlx5_14");
    assert!(!filter.unwrap().allows("mlx5_8"));
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("'^=mlx5_14'") && warnings[0].contains("'mlx5_14'"), "{}", warnings[0]);
    assert_eq!(read(&"x".repeat(4096)).1.len(), 1);
    assert_eq!(names("[10.0.0.1]"), ["[10.0.0.1]"]);
    assert_eq!(read("10.0.0.5").0.unwrap().address(), Some("10.0.0.5".parse().unwrap()));
}

#[test]
fn rendezvous_addresses_are_read() {
    assert_eq!(CommId::parse("10.0.0.1:4000"), Ok(CommId::Address("10.0.0.1:4000".parse().unwrap())));
    assert_eq!(CommId::parse(" [2001:db8::1]:4000 "), Ok(CommId::Address("[2001:db8::1]:4000".parse().unwrap())));
    assert_eq!(CommId::parse("node-1.example:4000"), Ok(CommId::Name("node-1.example".to_string(), 4000)));
    for bad in
        ["", "10.0.0.1", ":4000", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:70000", "[::1:4000", "[x]:1", "::1:4000", "a:b"]
    {
        let error = CommId::parse(bad).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{bad}");
        assert!(error.to_string().contains(&format!("'{bad}'")), "{error}");
    }
    assert_eq!(Family::parse("AF_INET6"), Some(Family::V6));
    assert_eq!(Family::parse("inet"), None);
}

proptest! {
    #[test]
    fn any_text_and_any_id_is_survived(
        text in ".{0,40}",
        bytes in prop::collection::vec(any::<u8>(), 128),
        marked in any::<bool>(),
    ) {
        let _ = CommId::parse(&text);
        let _ = InterfaceFilter::parse(&text);
        let mut id = [0; 128];
        id.copy_from_slice(&bytes);
        if marked {
            id[40..46].copy_from_slice(b"oxccl\x01");
        }
        if let Ok(parts) = IdParts::decode(&UniqueId(id)) {
            prop_assert_eq!(parts.encode(), UniqueId(id));
        }
    }
}
