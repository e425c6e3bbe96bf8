//! The names that the library exports, and what it needs to be loaded.

use std::collections::BTreeMap;

use object::read::elf::{Dyn, ElfFile64, FileHeader, SectionHeader, Sym};
use object::{LittleEndian, elf};

use crate::common;
use crate::tool;

const ENDIAN: LittleEndian = LittleEndian;

fn library() -> Vec<u8> {
    std::fs::read(common::profile_dir().join("libnccl.so.2")).expect("the library was built")
}

/// Binding and address of every function that the library defines for others.
fn exports(bytes: &[u8]) -> BTreeMap<String, (elf::SymbolBind, u64)> {
    let file = ElfFile64::<LittleEndian>::parse(bytes).expect("an ELF file");
    let symbols = file.elf_dynamic_symbol_table();
    let defined = symbols.iter().filter(|s| s.st_shndx(ENDIAN) != elf::SHN_UNDEF && s.st_bind() != elf::STB_LOCAL);
    let name =
        |s: &elf::Sym64<LittleEndian>| String::from_utf8_lossy(s.name(ENDIAN, symbols.strings()).unwrap()).into_owned();
    defined.map(|s| (name(s), (s.st_bind(), s.st_value(ENDIAN)))).collect()
}

/// The dynamic section: strings of DT_NEEDED or DT_SONAME.
fn dynamic(bytes: &[u8], tag: elf::DynamicTag) -> Vec<String> {
    let header = elf::FileHeader64::<LittleEndian>::parse(bytes).expect("an ELF file");
    let sections = header.sections(ENDIAN, bytes).expect("sections");
    let (entries, strings) = sections.dynamic(ENDIAN, bytes).expect("readable").expect("a dynamic section");
    let strings = sections.strings(ENDIAN, bytes, strings).expect("strings");
    let text = |entry: &elf::Dyn64<LittleEndian>| entry.string(ENDIAN, strings).expect("a string").to_vec();
    let of_tag = entries.iter().filter(|e| e.d_tag.get(ENDIAN) == tag);
    of_tag.map(|e| String::from_utf8_lossy(&text(e)).into_owned()).collect()
}

#[test]
fn the_names_are_nvidias() {
    let expected = tool::text("tests/abi/symbols.expected");
    let expected: BTreeMap<&str, &str> =
        expected.lines().filter_map(|l| l.split_once(' ')).map(|(b, n)| (n, b)).collect();
    assert_eq!(expected.len(), 193);
    let bytes = library();
    let found = exports(&bytes);
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, expected.keys().copied().collect::<Vec<_>>());
    let binding = |b: elf::SymbolBind| if b == elf::STB_WEAK { "W" } else { "T" };
    let wrong: Vec<_> = found.iter().filter(|(name, (b, _))| binding(*b) != expected[name.as_str()]).collect();
    let weak = found.values().any(|(b, _)| *b == elf::STB_WEAK);
    // GNU ld cannot export a weak alias beside rustc's own list; then both names are strong.
    if common::need::need("a linker that exports weak names (rust-lld)", weak.then_some(())).is_some() {
        assert!(wrong.is_empty(), "wrong binding: {wrong:?}");
        for (name, (_, address)) in
            found.iter().filter(|(name, _)| name.starts_with("nccl") && *name != "ncclResetDebugInitInternal")
        {
            assert_eq!(found[&format!("p{name}")].1, *address, "{name} and its plain form are one function");
        }
    }
}

#[test]
fn the_expected_names_are_those_of_nvidias_library() {
    let Some(home) = tool::nvidia() else { return };
    let theirs = std::fs::read_to_string(home.join("symbols.txt")).expect("symbols.txt");
    assert_eq!(theirs, tool::text("tests/abi/symbols.expected"));
}

#[test]
fn the_library_needs_no_cuda_and_no_cpp_runtime() {
    let bytes = library();
    assert_eq!(dynamic(&bytes, elf::DT_SONAME), ["libnccl.so.2"]);
    let needed = dynamic(&bytes, elf::DT_NEEDED);
    let allowed = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1"];
    let unexpected = needed.iter().find(|n| !allowed.contains(&n.as_str()) && !n.starts_with("ld-linux"));
    assert_eq!(unexpected, None, "of {needed:?}");
}

#[test]
fn nothing_that_is_exported_is_called_by_name() {
    let bytes = library();
    let file = ElfFile64::<LittleEndian>::parse(bytes.as_slice()).expect("an ELF file");
    let symbols = file.elf_dynamic_symbol_table();
    for symbol in symbols.iter().filter(|s| s.st_shndx(ENDIAN) == elf::SHN_UNDEF) {
        let name = String::from_utf8_lossy(symbol.name(ENDIAN, symbols.strings()).unwrap()).into_owned();
        let own = ["nccl", "pnccl", "cu", "nvml", "ibv_"].iter().any(|p| name.starts_with(p));
        assert!(!own, "{name} would be found in another library");
    }
}

#[test]
fn symbols_have_no_versions() {
    let bytes = library();
    let header = elf::FileHeader64::<LittleEndian>::parse(bytes.as_slice()).expect("an ELF file");
    let sections = header.sections(ENDIAN, bytes.as_slice()).expect("sections");
    assert!(sections.iter().all(|s| s.sh_type(ENDIAN) != elf::SHT_GNU_VERDEF));
    let versions = sections.versions(ENDIAN, bytes.as_slice()).expect("readable").expect("versions of libc");
    let number =
        |name: &str| -> Option<Vec<u32>> { name.strip_prefix("GLIBC_")?.split('.').map(|n| n.parse().ok()).collect() };
    let symbols = sections.symbols(ENDIAN, bytes.as_slice(), elf::SHT_DYNSYM).expect("symbols");
    let index = |i| versions.version_index(ENDIAN, object::SymbolIndex(i));
    let names = (0..symbols.len()).filter_map(|i| versions.version(index(i).index()).ok().flatten());
    let newest = names.filter_map(|v| number(&String::from_utf8_lossy(v.name()))).max();
    println!("the newest version of glibc that is needed: {newest:?} (releases must need no more than 2.28)");
}

#[test]
fn tools_find_the_version_in_the_file() {
    let bytes = library();
    let mark = b"NCCL version 2.32.3+cuda";
    let at = bytes.windows(mark.len()).position(|w| w == mark).expect("the banner");
    let tail = String::from_utf8_lossy(&bytes[at + mark.len()..at + mark.len() + 8]).into_owned();
    let (major, rest) = tail.split_once('.').expect("major.minor");
    assert!(major.parse::<u32>().is_ok() && rest.starts_with(|c: char| c.is_ascii_digit()), "{tail}");
}
