//! Code for GPUs that the build has embedded: one fatbin of nvcc's, or machine code and PTX of a run-time compiler's.

use crate::error::Error;

/// One embedded image.
pub(super) struct Embedded {
    /// `fatbin`, whose parts the driver chooses among; `sm_90`, machine code; `compute_70`, PTX.
    pub(super) code: &'static str,
    /// Compressed (zlib) but for a fatbin, which is so in itself.
    bytes: &'static [u8],
}

// `IMAGES`, and `CODES`: what they have code for, in words.
include!(concat!(env!("OUT_DIR"), "/images.rs"));

impl Embedded {
    /// What the driver is given.
    ///
    /// # Errors
    /// [`Error::Internal`] where this library's file is damaged.
    pub(super) fn image(&self) -> Result<Vec<u8>, Error> {
        if self.code == FATBIN {
            return Ok(self.bytes.to_vec());
        }
        let inflated = miniz_oxide::inflate::decompress_to_vec_zlib(self.bytes);
        inflated.map_err(|error| Error::Internal(format!("the embedded code {} is damaged: {error}", self.code)))
    }
}

/// The name of an image that nvcc has made.
const FATBIN: &str = "fatbin";

/// The images that a device of this compute capability (major × 10 + minor) may run, the best one first.
pub(super) fn for_device(capability: i32) -> Vec<&'static Embedded> {
    let codes: Vec<&str> = IMAGES.iter().map(|image| image.code).collect();
    places(&codes, capability).into_iter().map(|place| &IMAGES[place]).collect()
}

/// The places of the codes that a device may run, the best one first: machine code runs on devices of its own major
/// capability from its minor one on, PTX on all from its capability on.
fn places(codes: &[&str], capability: i32) -> Vec<usize> {
    let number = |code: &str, kind: &str| code.strip_prefix(kind).and_then(|number| number.parse::<i32>().ok());
    let rank = |code: &str| match (number(code, "sm_"), number(code, "compute_")) {
        (Some(machine), _) => {
            (machine <= capability && machine / 10 == capability / 10).then_some((1, capability - machine))
        }
        (_, Some(ptx)) => (ptx <= capability).then_some((2, capability - ptx)),
        _ => Some((0, 0)),
    };
    let mut found: Vec<((i32, i32), usize)> =
        codes.iter().enumerate().filter_map(|(place, code)| Some((rank(code)?, place))).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_the_code_that_is_nearest() {
        let codes = ["sm_70", "sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "compute_70", "compute_90"];
        let found = |capability| places(&codes, capability).into_iter().map(|place| codes[place]).collect::<Vec<_>>();
        assert_eq!(found(60), [""; 0]);
        assert_eq!(found(75), ["sm_75", "sm_70", "compute_70"]);
        assert_eq!(found(86), ["sm_80", "compute_70"]);
        assert_eq!(found(90), ["sm_90", "compute_90", "compute_70"]);
        assert_eq!(found(103), ["sm_100", "compute_90", "compute_70"]);
        // No machine code: the newest that the driver can translate.
        assert_eq!(found(110), ["compute_90", "compute_70"]);
        assert_eq!(places(&[FATBIN], 60), [0]);
    }

    #[test]
    fn what_is_embedded_is_whole() {
        for image in &IMAGES {
            let bytes = image.image().expect("an image");
            assert!(!bytes.is_empty() && CODES.contains(image.code) || image.code == FATBIN, "{}", image.code);
            assert!(!image.code.starts_with("sm_") || bytes.starts_with(b"\x7fELF"), "{}", image.code);
        }
    }
}
