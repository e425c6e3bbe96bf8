fn main() { std::fs::write(std::path::Path::new(&std::env::var("OUT_DIR").unwrap()).join("device.fatbin"), b"").unwrap(); }
