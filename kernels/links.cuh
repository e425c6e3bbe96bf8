// What the two ends of a link tell each other besides data: which call this is, and that one of them has left.
//
// Simple, and signals of any protocol: the sender writes its call's signature beside the counter before it posts; the
// receiver looks at it when an item first uses the link, before it uses the slot.
//
// LL: no counter says that a slot is there, so this is best effort. When an item first uses a link its sender writes
// where the item begins there, and its signature, as one word; the receiver looks at it when lines do not come, and
// once they have come. Nothing orders that word and the lines: a mismatch may be missed, and then shows as a wait or in
// the next call. Ends that agree begin their items at the same place, so there is never a false alarm.
//
// An error of a rank ends its block, which says so in all counters that it writes. Whoever waits for one of them
// leaves too and says so in turn. After that the links are dead for good.
#pragma once
#include "target.cuh"

namespace oxccl {
namespace {

FN u32 peerOf(const LinkEnd& l) { return l.peer & ~LINK_MOVED; }

// Whoever takes the slot to the peer is told how much it holds, before it is posted.
FN void tellSize(Counter& posted, u64 at, u64 bytes) {
  const u64 units = (bytes + SLOT_SIZE_UNIT - 1) / SLOT_SIZE_UNIT;
  const u32 size = units < WHOLE_SLOT ? (u32)units : WHOLE_SLOT;
  u8* sizes = (u8*)&posted.call + 2 * (at % SLOTS);
  sizes[0] = (u8)size;
  sizes[1] = (u8)(size >> 8);
}

FN u64 callWord(u64 begin, u32 signature) { return (u32)begin | (u64)signature << 32; }

// The block's own signature differs from the peer's: that is the error.
FN bool mismatch(const LaunchArgs& a, const LinkEnd& l, u32 serial, u32 own, u32 theirs) {
  if (!own || own == theirs) return false;
  report(a, ERROR_MISMATCH, peerOf(l), serial, own, theirs);
  return true;
}
// A link whose lines say what is there. A fresh counter has the signature 0, which says nothing.
FN bool callMismatch(const LaunchArgs& a, const LinkEnd& l, u32 serial, u32 own) {
  const u64 call = loadWord(&l.posted->call);
  const u32 theirs = (u32)(call >> 32);
  return theirs && (u32)call == l.begin && mismatch(a, l, serial, own, theirs);
}

// An end leaves for good.
FN void leaveEnd(LinkEnd& l, Counter* written) {
  // A rank may leave for good while another of its kernels leaves.
  if (loadFlag(&l.left)) return;
  storeFlag(&l.left, 1);
  abandon(written);
}
// All links that an item uses. Which end a link is only the steps say.
FN void leaveLinks(const Work& w) {
  for (u32 i = 0; i < w.nsteps; i++) {
    const Step& step = w.steps[i];
    for (u32 k = 0; k < step.nrecv; k++) leaveEnd(w.links[step.recv[k]], w.links[step.recv[k]].consumed);
    for (u32 k = 0; k < step.nsend; k++) leaveEnd(w.links[step.send[k]], w.links[step.send[k]].posted);
  }
}

}  // namespace
}  // namespace oxccl
