//! The work of a rank that leaves: it marks its links, so that whoever waits for it leaves, too.

use super::cut::CutSource;
use super::device_schedules::DeviceSchedule;
use super::{Half, ScheduleIndex};
use crate::plan::LinkClass;
use crate::plan::layout::{Proto, Work};
use crate::plan::wiring::ConnectionGroup;

impl ScheduleIndex {
    /// Items at which a kernel leaves and marks every link of this rank that is connected, once the error report says
    /// that it is to: they have no piece, so that nothing is ever moved.
    pub fn goodbye(&self) -> Vec<Work> {
        self.connected.groups().into_iter().flat_map(|group| self.goodbye_to(group)).collect()
    }

    fn goodbye_to(&self, group: ConnectionGroup) -> Vec<Work> {
        let CutSource { schedules, tables } = &self.source;
        match group {
            ConnectionGroup::Channel { class, proto, channel } => {
                let Some(table) = tables.get(class, proto) else { return Vec::new() };
                let of_class = schedules.goodbyes(channel).iter().filter(|schedule| schedule.class == class);
                of_class.map(|schedule| item(*schedule, table.channel(channel), table.links as u16)).collect()
            }
            ConnectionGroup::Pair { low, high } => {
                let peer = low + high - self.rank;
                let protocols = Proto::ALL.into_iter().filter(|proto| tables.get(LinkClass::Peer, *proto).is_some());
                let halves =
                    protocols.flat_map(|proto| [Half::Send(peer), Half::Receive(peer)].map(|half| (half, proto)));
                let channels = halves.flat_map(|(half, proto)| {
                    let table = tables.half(half, proto);
                    (0..table.channels).map(move |channel| (half, table.channel(channel)))
                });
                channels.map(|(half, links)| item(*schedules.half(half), links, 1)).collect()
            }
        }
    }
}

fn item(schedule: DeviceSchedule, links: u64, nlinks: u16) -> Work {
    Work { steps: schedule.steps, nsteps: schedule.nsteps, links, nlinks, hi: 1, ..Work::default() }
}
