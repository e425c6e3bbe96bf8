//! What there is to say of a rank whose last collective does not end: which other rank is to blame.

use std::time::Duration;

use super::record::Record;

/// A collective that has not ended for so long is looked at. In shorter time nothing is asked of the system.
pub const PATIENCE: Duration = Duration::from_millis(500);
/// How long a collective may go on after the end of a rank that has called it, too: what the rank had to send may be
/// there, and wait behind other work of the stream.
pub const GONE_LIMIT: Duration = Duration::from_secs(30);

/// How long ranks of other hosts have to answer before they are named as late.
pub const ANSWERS_LIMIT: Duration = Duration::from_secs(1);

/// Another rank, as far as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its rank.
    pub rank: u32,
    /// Its last collective; none before the first.
    pub last: Option<Record>,
    /// Its process has ended.
    pub gone: bool,
    /// It has ended its communicator as it should.
    pub ended: bool,
    /// It is of another host, and was asked for its last collective in vain.
    pub mute: bool,
}

impl Peer {
    fn has_called(&self, record: &Record) -> bool {
        !self.mute && self.last.is_some_and(|last| last.serial >= record.serial)
    }

    fn last_text(&self) -> String {
        match &self.last {
            _ if self.mute => "it does not answer: its process is stopped or hangs, and its host is there".to_string(),
            Some(last) => format!("its last one was collective {}, {}", last.serial, last.text()),
            None => "it has not called any".to_string(),
        }
    }
}

/// What is to be done about a collective that does not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet.
    Patience,
    /// It will never end, since a rank is gone: the rank, and a sentence.
    Lost(u32, String),
    /// To say, once, who has not come yet.
    Late(String),
}

/// How long this rank has been in its last collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    record: Record,
    since: Duration,
    /// When a rank was first seen to be gone that had called it.
    gone_since: Option<Duration>,
    asked: bool,
    said: bool,
}

impl Waiting {
    /// A rank that has been seen in a collective for the first time, by any clock.
    pub fn new(record: Record, now: Duration) -> Waiting {
        Waiting { record, since: now, gone_since: None, asked: false, said: false }
    }

    /// Whether it still is the same collective.
    pub fn is_of(&self, record: &Record) -> bool {
        self.record.serial == record.serial
    }

    /// Whether it has gone on for long enough to look at the other ranks.
    pub fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= PATIENCE
    }

    /// Whether ranks of other hosts are to be asked for their last collectives now, so that those that are missing
    /// after `late` can be named: once.
    pub fn is_to_ask(&mut self, now: Duration, late: Option<Duration>) -> bool {
        let due = late.is_some_and(|late| now.saturating_sub(self.since) >= late.saturating_sub(ANSWERS_LIMIT));
        due && !std::mem::replace(&mut self.asked, true)
    }

    /// Judges what is to be seen of the other ranks. After `late` those that are missing are named; `None`: never.
    pub fn judge(&mut self, me: u32, peers: &[Peer], now: Duration, late: Option<Duration>) -> Verdict {
        let (serial, call) = (self.record.serial, self.record.text());
        let gone = || peers.iter().filter(|peer| peer.gone);
        if let Some(peer) = gone().find(|peer| !peer.has_called(&self.record)) {
            let rank = peer.rank;
            let text = format!(
                "rank {rank} is gone: its process has ended, and rank {me} waits for it in collective {serial}, {call}"
            );
            return Verdict::Lost(rank, format!("{text}; {}", peer.last_text()));
        }
        if let Some(peer) = gone().find(|peer| !peer.ended) {
            let since = *self.gone_since.get_or_insert(now);
            if now.saturating_sub(since) >= GONE_LIMIT {
                let text =
                    format!("rank {} is gone: its process has ended during collective {serial}, {call}", peer.rank);
                return Verdict::Lost(
                    peer.rank,
                    format!("{text}, which rank {me} has not come to the end of for {GONE_LIMIT:?}"),
                );
            }
        }
        let missing: Vec<&Peer> = peers.iter().filter(|peer| !peer.has_called(&self.record)).collect();
        let waited = now.saturating_sub(self.since);
        match missing.first() {
            Some(first) if !self.said && late.is_some_and(|late| waited >= late) => {
                self.said = true;
                let others =
                    if missing.len() > 1 { format!(" (nor have {} others)", missing.len() - 1) } else { String::new() };
                let text = format!("rank {me} has been in collective {serial}, {call}, for {} s", waited.as_secs());
                Verdict::Late(format!("{text}: rank {} has not called it{others}; {}", first.rank, first.last_text()))
            }
            _ => Verdict::Patience,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::call::{DataType, Func, Op};

    const LATE: Option<Duration> = Some(Duration::from_secs(30));

    fn record(serial: u64) -> Record {
        let (func, datatype) = (Func::AllReduce as u8, DataType::Float32 as u8);
        Record { serial, func, datatype, op: Op::Sum as u8, root: 0, count: 8 }
    }

    fn peer(rank: u32, last: Option<u64>) -> Peer {
        Peer { rank, last: last.map(record), gone: false, ended: false, mute: false }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn who_is_gone_before_the_call_is_named_at_once() {
        let mut waiting = Waiting::new(record(7), at(100));
        assert!(!waiting.is_due(at(100)) && waiting.is_due(at(101)));
        let peers = [peer(0, Some(7)), Peer { gone: true, ..peer(2, Some(6)) }];
        let Verdict::Lost(2, text) = waiting.judge(1, &peers, at(101), LATE) else { panic!("nothing is said") };
        assert_eq!(
            text,
            "rank 2 is gone: its process has ended, and rank 1 waits for it in collective 7, AllReduce of 8 ncclFloat32, ncclSum; \
             its last one was collective 6, AllReduce of 8 ncclFloat32, ncclSum"
        );
    }

    #[test]
    fn who_is_gone_after_the_call_may_have_done_its_part() {
        let mut waiting = Waiting::new(record(7), at(0));
        let ended = [Peer { gone: true, ended: true, ..peer(2, Some(8)) }];
        let killed = [Peer { gone: true, ..peer(2, Some(7)) }];
        for seconds in [1, 1000] {
            assert_eq!(waiting.judge(1, &ended, at(seconds), LATE), Verdict::Patience);
        }
        assert_eq!(waiting.judge(1, &killed, at(2000), LATE), Verdict::Patience);
        assert_eq!(waiting.judge(1, &killed, at(2029), LATE), Verdict::Patience);
        assert!(
            matches!(waiting.judge(1, &killed, at(2030), LATE), Verdict::Lost(2, text) if text.contains("during collective 7"))
        );
        // One that has ended as it should hides no other.
        let both = [Peer { rank: 0, ..ended[0].clone() }, killed[0].clone()];
        assert!(matches!(waiting.judge(1, &both, at(2031), LATE), Verdict::Lost(2, _)));
    }

    #[test]
    fn others_are_asked_once_before_they_are_named() {
        let mut waiting = Waiting::new(record(7), at(100));
        assert!(!waiting.is_to_ask(at(120), LATE) && !waiting.is_to_ask(at(999), None));
        assert!(waiting.is_to_ask(at(129), LATE) && !waiting.is_to_ask(at(130), LATE));
        let peers = [peer(0, Some(7)), Peer { mute: true, ..peer(2, Some(7)) }];
        let Verdict::Late(text) = waiting.judge(1, &peers, at(130), LATE) else { panic!("nothing is said") };
        assert!(text.contains("rank 2 has not called it") && text.contains("does not answer"), "{text}");
    }

    #[test]
    fn who_is_late_is_named_once() {
        let mut waiting = Waiting::new(record(7), at(0));
        let peers = [peer(0, Some(7)), peer(2, None), peer(3, Some(6))];
        assert_eq!(waiting.judge(1, &peers, at(29), LATE), Verdict::Patience);
        assert_eq!(waiting.judge(1, &peers, at(1000), None), Verdict::Patience);
        let Verdict::Late(text) = waiting.judge(1, &peers, at(31), LATE) else { panic!("nothing is said") };
        assert_eq!(
            text,
            "rank 1 has been in collective 7, AllReduce of 8 ncclFloat32, ncclSum, for 31 s: rank 2 has not called it (nor have 1 \
             others); it has not called any"
        );
        assert_eq!(waiting.judge(1, &peers, at(60), LATE), Verdict::Patience);
        assert!(waiting.is_of(&record(7)) && !waiting.is_of(&record(8)));
    }
}
