//! How the library says in its log that it carries a call out.

use nccl::plan::algorithm::Algo;
use nccl::plan::layout::Proto;

/// How a call is carried out: algorithm, protocol, and the most channels.
pub type Way = (Algo, Proto, u32);

/// How a call of so many bytes was carried out, as lines like `AllReduce 64 B: direct/LL, 1 channels, est. ...` say.
///
/// # Errors
/// No line says it.
pub fn of_log(log: &str, function: &str, bytes: usize) -> Result<Way, String> {
    let call = format!(" {function} {bytes} B: ");
    let found = log.lines().find_map(|line| {
        let (_, said) = line.split_once(&call)?;
        let mut parts = said.split(", ");
        let (algorithm, protocol) = parts.next()?.split_once('/')?;
        let channels = parts.next()?.strip_suffix(" channels")?.parse().ok()?;
        let algorithm = Algo::ALL.into_iter().find(|known| known.name() == algorithm)?;
        Some((algorithm, Proto::ALL.into_iter().find(|known| known.name() == protocol)?, channels))
    });
    found.ok_or_else(|| format!("the library's log does not say how it carries out{}", call.trim_end_matches(": ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_understood() {
        let log = "h:1:2 [0] NCCL INFO AllReduce 64 B: direct/LL, 1 channels, est. 7.9 us; ring/LL 8.5 us\n\
                   h:1:2 [0] NCCL INFO AllReduce 4096 B: direct2/LL128, 4 channels, est. 8.3 us\n";
        assert_eq!(of_log(log, "AllReduce", 4096), Ok((Algo::TwoStep, Proto::Ll128, 4)));
        assert_eq!(of_log(log, "AllReduce", 64), Ok((Algo::Direct, Proto::Ll, 1)));
        assert!(of_log(log, "AllReduce", 6).expect_err("nothing").contains("AllReduce 6 B"));
        assert!(of_log(log, "Reduce", 64).is_err());
    }
}
