// Zero-copy by agreement: an item with WORK_OFFER uses the peers' buffers themselves, and runs only if all ranks can.
//
// Its schedule begins with four signals between all ranks. The first carries each rank's offers: where its input and
// output are in memory that it has registered. An offer is a registration's tag, the low bits of which are the
// registration's number, and the offset there. 0: nobody needs that buffer. OFFER_MISSING: somebody would, but it is
// not registered; everybody sees that, and nobody goes on. The second signal is each rank's verdict: whether it reaches
// all that it was offered. If all do, the links carry the peers' buffers for as long as the item runs.
//
// The words of an offer have no slot of their own: a sender writes them when the receiver has consumed everything
// before. Verdicts are beside the counters, one for each slot, in place of signatures.
//
// Half of a message (WORK_PULL) has only one peer, so two signals do. The sender posts a slot with its offer and waits
// until that is consumed. The receiver, who cannot know what comes, looks: data in the slot are for its next item; an
// offer that it reaches it reads from, and what it consumes it says beside its counter, in place of signatures: taken,
// or not. A sender that has nothing to offer posts none.
//
// What a rank reaches its host writes to a table, one word for each registration of each rank: the tag, and the
// memory's address in units of PLACE_UNIT. One word says both, so that a host may change it while a kernel looks.
#pragma once
#include "links.cuh"

namespace oxccl {
namespace {

constexpr u64 OFFER_MISSING = ~0ull, OFFSET_MASK = (1ull << OFFER_BITS) - 1;

// Where an offer of a rank is in this rank's memory; null: not to be reached.
FN char* offeredBuffer(const u64* peers, u32 rank, u64 offer) {
  if (!peers || !offer) return nullptr;
  const u64 tag = offer >> OFFER_BITS, entry = loadWord(peers + rank * REGISTRATIONS + tag % REGISTRATIONS);
  if (entry >> OFFER_BITS != tag) return nullptr;
  return (char*)((entry & OFFSET_MASK) * PLACE_UNIT + (offer & OFFSET_MASK));
}

// What the ranks have said of an item so far. Any lane sets a flag, lane 0 reads them.
struct Agreement {
  u32 declined;        // a rank has nothing to offer
  u32 unable;          // a rank does not reach what it was offered
};

// A peer's offers: the link from it takes its input, the link to it its output.
FN void takeOffers(Agreement& all, const u64* peers, LinkEnd& from, LinkEnd& to) {
  const u64 in = loadWord(&from.posted->call), out = loadWord(&from.posted->offer);
  if (in == OFFER_MISSING || out == OFFER_MISSING) return storeFlag(&all.declined, 1);
  from.direct = offeredBuffer(peers, from.peer, in);
  to.direct = offeredBuffer(peers, from.peer, out);
  if ((in && !from.direct) || (out && !to.direct)) storeFlag(&all.unable, 1);
}
FN void giveOffers(const Work& w, Counter& posted) {
  storeWord(&posted.call, w.offers[0]);
  storeWord(&posted.offer, w.offers[1]);
}

// A message's sender: the slot `at` is an offer.
FN void giveOffer(const Work& w, Counter& posted, u64 at) {
  storeWord(&posted.call, w.offers[0]);
  storeWord(&posted.offer, at + 1);
}
// Its receiver, of the slot that has come. While it looks, the sender waits.
FN void takeOffer(Agreement& all, const u64* peers, LinkEnd& from) {
  if (loadWord(&from.posted->offer) != from.pos + 1) return storeFlag(&all.declined, 1);
  from.direct = offeredBuffer(peers, from.peer, loadWord(&from.posted->call));
  if (!from.direct) storeFlag(&all.unable, 1);
}
// Its sender, whose offer has been consumed.
FN void hearTaken(Agreement& all, const LinkEnd& to) {
  if (!to.consumed->signatures[(to.pos - 1) % SLOTS]) storeFlag(&all.unable, 1);
}

// Whether an item may go on after a step.
FN bool agreed(const Agreement& all, const Work& w, const Step& step) {
  if (step.flags & STEP_PULL) return !loadFlag(&all.declined) && !loadFlag(&all.unable);
  if (!step.nrecv) return true;
  if (step.flags & STEP_OFFER)
    return !loadFlag(&all.declined) && w.offers[0] != OFFER_MISSING && w.offers[1] != OFFER_MISSING;
  return !(step.flags & STEP_VERDICT) || !loadFlag(&all.unable);
}

// Asking in vain costs a signal, so after REFUSALS refusals in a row only one of SKIPPED + 1 calls asks. Each rank
// remembers for itself, by classes of like signatures, in bytes that its ends of the item's links have to spare: how
// often it was refused (3 bits), and how many calls are left that do not ask (5 bits). As all have asked the same and
// heard the same, all remember the same.
constexpr u32 REFUSALS = 7, SKIPPED = 15;

FN u32& memoryOf(const Work& w) { return w.links[w.signature / 8 % w.nlinks].begin; }
FN u32 memoryShift(const Work& w) { return w.signature / 2 % 4 * 8; }

FN bool asks(const Work& w) {
  if (!w.nlinks) return true;
  u32& memory = memoryOf(w);
  const u32 at = memoryShift(w);
  if (!(memory >> at & 0xf8)) return true;
  memory -= 8u << at;
  return false;
}
FN void remember(const Work& w, bool agreed) {
  u32& memory = memoryOf(w);
  const u32 at = memoryShift(w), before = memory >> at & 7, now = before < REFUSALS ? before + 1 : REFUSALS;
  memory &= ~(0xffu << at);
  if (!agreed) memory |= (now | (now == REFUSALS ? SKIPPED << 3 : 0)) << at;
}

// Links carry slots again.
FN void takeBack(const Work& w) {
  for (u32 i = 0; i < w.nlinks; i++) w.links[i].direct = nullptr;
}

}  // namespace
}  // namespace oxccl
