// The interpreter: knows steps, chunks and links; knows no ring, tree, root or rank.
//
// A block goes through its turns: one step, once, for one piece of a chunk. The manager lanes wait for the
// step's links and write down in shared memory what is to move; all threads move it; the manager lanes
// move the counters. Nothing but the manager knows where in the schedule the block is.
#pragma once
#include "ll.cuh"
#include "offers.cuh"

namespace oxccl {
namespace {

// Where a block is in its work. Only manager lane 0 writes it.
struct Cursor {
  u32 item;            // index of the work item
  u32 step;
  u32 rounds;          // repetitions of the step that are still to come, this one included
  u32 in_chunk, out_chunk;
  u64 offset;          // of the piece, from the chunk's begin, in elements
};

// What an item's steps and links are copied to where they are far, as far as there is room.
constexpr u32 NEAR_STEPS = STATE_IS_NEAR ? 1 : 16, NEAR_LINKS = STATE_IS_NEAR ? 1 : 16;

struct Shared {
  Turn turn;
  Cursor at;
  Work work;
  Step step;
  u32 failed;          // set by any thread that finds that the block must leave
  u32 fresh;           // the item has just been opened
  u32 other;           // the next item, `at.item`, is of another protocol (interpretMessages)
  u32 stop;            // the exit: written by lane 0 between the second barrier and the first, so that all
                       // threads of the block take it together
  Agreement agreement; // of an item with WORK_OFFER
  u8 used[MAX_LINKS];  // whether the item has used a link; each byte is written by who has the link in a turn
  LinkEnd* home;       // where the links are that `work.links` has a copy of
  alignas(64) LinkEnd links[NEAR_LINKS];
  alignas(64) Step steps[NEAR_STEPS];
};

// --- what is far ---------------------------------------------------------------------------------------

// Some lanes copy together.
template<class E> FN void copyAll(const Block& b, E* to, const E* from, u32 n) {
  for (u32 i = b.lane(); i < n; i += b.lanes()) to[i] = from[i];
}
// All lanes: an item begins.
FN void bringNear(const Block& b, Shared& s) {
  const Work& w = s.work;
  copyAll(b, s.steps, w.steps, w.nsteps < NEAR_STEPS ? w.nsteps : NEAR_STEPS);
  if (w.nlinks <= NEAR_LINKS) copyAll(b, s.links, w.links, w.nlinks);
  b.lanesBarrier();
  if (b.lane() != 0) return;
  s.home = w.links;
  if (w.nlinks <= NEAR_LINKS) s.work.links = s.links;
}
// Lane 0: an item ends. Links last; but whether one was left for good others may have written meanwhile.
FN void putBack(Shared& s) {
  if (STATE_IS_NEAR || s.work.links != s.links) return;
  for (u32 i = 0; i < s.work.nlinks; i++) {
    s.home[i].pos = s.links[i].pos;
    s.home[i].seen = s.links[i].seen;
    s.home[i].begin = s.links[i].begin;
  }
  s.work.links = s.home;
}

// --- the cursor (lane 0) -----------------------------------------------------------------------------

FN void openStep(Shared& s, u32 index) {
  s.step = !STATE_IS_NEAR && index < NEAR_STEPS ? s.steps[index] : s.work.steps[index];
  s.at.step = index;
  s.at.rounds = s.step.repeat ? s.step.repeat : 1;
  s.at.in_chunk = s.step.in_chunk;
  s.at.out_chunk = s.step.out_chunk;
}

FN const Work& itemAt(const LaunchArgs& a, u32 item) { return a.items ? a.items[item] : a.work[item]; }

// The first item of a block, and how far it is from one to the next.
FN u32 firstItem(const LaunchArgs& a, u32 block) { return a.flags & LAUNCH_ROWS ? 0 : block; }
FN u32 nextStride(const LaunchArgs& a) { return a.flags & LAUNCH_ROWS ? 1 : a.nchannels; }

// A block's channel of a row. Channels have equal parts, and the row says what the first one's is.
FN u32 rowChannel(const LaunchArgs& a, const Work& w, u32 block) {
  return (block + a.nchannels - w.first) % a.nchannels;
}

// Whether a block has something to do in an item.
FN bool hasPart(const LaunchArgs& a, const Work& w, u32 block) {
  if (!w.nsteps || w.lo >= w.hi) return false;
  // Not `channel * part < block`, which would wrap for huge parts.
  return !(a.flags & LAUNCH_ROWS) || rowChannel(a, w, block) <= (w.block - 1) / (w.hi - w.lo);
}

// A row becomes a block's part of it: the elements of its channel, and the links of the block's number.
FN void takePart(const LaunchArgs& a, Work& w, u32 block) {
  if (!(a.flags & LAUNCH_ROWS)) return;
  const u64 part = w.hi - w.lo;
  w.lo = rowChannel(a, w, block) * part;
  w.hi = w.block - w.lo < part ? w.block : w.lo + part;
  w.links += (u64)block * w.nlinks;
}

// The block's next item from `item` on that has something to do; `nwork`: there is none.
FN u32 nextItem(const LaunchArgs& a, u32 item, u32 block) {
  const u32 end = a.items || a.nwork < MAX_WORK ? a.nwork : (u32)MAX_WORK;
  for (; item < end && a.nchannels; item += nextStride(a))
    if (hasPart(a, itemAt(a, item), block)) return item;
  return a.nwork;
}

// The block leaves in the middle of `item`. What it was still to do it does not, so nobody need wait for it; but
// told by the host to leave, it says nothing.
FN void leaveItems(const LaunchArgs& a, u32 item, u32 block) {
  if (!broken(a)) return;
  while ((item = nextItem(a, item, block)) < a.nwork) {
    Work w = itemAt(a, item);
    takePart(a, w, block);
    leaveLinks(w);
    item += nextStride(a);
  }
}

// The scalar at an address, byte by byte: it may lie anywhere.
template<Type T> FN u64 scalarAt(const char* p) {
  u64 bits = 0;
  UNROLL for (int i = 0; i < sizeOf<T>; i++) bits |= bitsOf<1>(load<1>(p + i)) << 8 * i;
  return bits;
}

// Puts the cursor on the first item from `item` on that has something to do; false: there is none, or the block leaves.
template<Type T, class P> FN bool openWork(const LaunchArgs& a, Shared& s, u32 item, u32 block) {
  for (;; item += nextStride(a)) {
    item = nextItem(a, item, block);
    if (item >= a.nwork) return false;
    s.work = itemAt(a, item);
    takePart(a, s.work, block);
    if (!P::ALONE && s.work.proto != P::ID && s.work.proto <= LL) {
      s.at.item = item;
      s.other = 1;
      return false;
    }
    if (!P::COUNTED || !(s.work.flags & WORK_OFFER) || asks(s.work)) break;
  }
  bool bad =
      s.work.type != T || s.work.proto != P::ID || s.work.op >= NOPS || !s.work.piece || s.work.nlinks > MAX_LINKS;
  // What is agreed on happens once, so the item must be one piece.
  bad |= (s.work.flags & WORK_OFFER) && (!P::COUNTED || s.work.piece < s.work.hi - s.work.lo);
  if (bad) report(a, ERROR_BAD_WORK);
  if (bad || (HOST_IS_NEAR && broken(a))) {
    leaveItems(a, item, block);
    return false;
  }
  const u32 at = WORK_PRE | WORK_PRE_AT;
  if ((s.work.flags & at) == at) s.work.pre = scalarAt<T>((const char*)s.work.pre);
  for (u32 i = 0; i < s.work.nlinks; i++) s.used[i] = 0;
  storeFlag(&s.agreement.declined, 0);
  storeFlag(&s.agreement.unable, 0);
  s.at.item = item;
  s.at.offset = s.work.lo;
  if (STATE_IS_NEAR) openStep(s, 0);
  else s.fresh = 1;
  return true;
}

FN u32 turned(u32 chunk, i32 stride, u32 nchunks) {
  const i32 c = (i32)chunk + stride;
  return c < 0 ? c + nchunks : c >= (i32)nchunks ? c - nchunks : c;
}

// To the next turn; false: this block's work is done.
template<Type T, class P> FN bool advance(const LaunchArgs& a, Shared& s, u32 block) {
  if (--s.at.rounds) {
    s.at.in_chunk = turned(s.at.in_chunk, s.step.stride, s.work.nchunks);
    s.at.out_chunk = turned(s.at.out_chunk, s.step.stride, s.work.nchunks);
    return true;
  }
  const bool offered = P::COUNTED && (s.work.flags & WORK_OFFER),
             goes_on = !offered || agreed(s.agreement, s.work, s.step);
  if (goes_on && s.at.step + 1 < s.work.nsteps) {
    openStep(s, s.at.step + 1);
    return true;
  }
  if (offered) {
    // The item behind does the same by slots.
    takeBack(s.work);
    // The receiver of a message is not asked before, and has nothing to remember.
    if (!(s.step.flags & STEP_PULL) || !s.step.nrecv) remember(s.work, goes_on);
    putBack(s);
    return openWork<T, P>(a, s, s.at.item + (goes_on ? 2 : 1) * nextStride(a), block);
  }
  // Not `offset += piece < hi`: near the end of the 64 bits that would wrap.
  if (s.work.hi - s.at.offset > s.work.piece) {
    s.at.offset += s.work.piece;
    openStep(s, 0);
    return true;
  }
  putBack(s);
  return openWork<T, P>(a, s, s.at.item + nextStride(a), block);
}

// --- a turn ------------------------------------------------------------------------------------------

// Elements that move: a piece, cut at the channel's part and at the end of the data. A chunk beyond the
// end has none, but its turn takes place all the same, so that both ends of a link count alike.
FN u64 elements(const Work& w, u64 offset, u64 begin) {
  u64 n = w.hi - offset < w.piece ? w.hi - offset : w.piece;
  if (begin >= w.count) return 0;
  return w.count - begin < n ? w.count - begin : n;
}

// Lane 0: all of the turn but what the links have to say.
template<Type T> FN void describe(Shared& s) {
  const Work& w = s.work;
  const Step& step = s.step;
  Turn& t = s.turn;
  const bool in = step.flags & STEP_IN, out = step.flags & STEP_OUT, old = step.flags & STEP_FROM_OUT;
  const u64 in_begin = s.at.in_chunk * w.block + s.at.offset, out_begin = s.at.out_chunk * w.block + s.at.offset;
  t.bytes = step.flags & STEP_NO_DATA ? 0 : elements(w, s.at.offset, out ? out_begin : in_begin) * sizeOf<T>;
  t.nsrc = step.nrecv + in;
  t.ndst = step.nsend + out;
  t.op = w.op;
  t.place = step.place;
  t.user = step.flags & (STEP_IN | STEP_OUT);
  t.scale = (in && !old ? w.flags & WORK_PRE : 0) | (step.flags & STEP_POST ? w.flags & WORK_POST : 0);
  t.pre = w.pre;
  t.post = w.post;
  t.signature = w.signature;
  t.serial = w.serial;
  if (in) t.src[step.place] = (old ? (const char*)w.out : w.in) + in_begin * sizeOf<T>;
  if (out) t.dst[0] = w.out + out_begin * sizeOf<T>;
  // In place, the data is there already.
  if (in && out && !step.nrecv && !t.scale && t.src[0] == t.dst[0]) {
    t.user = STEP_IN;
    if (!--t.ndst) t.bytes = 0;
  }
}

// The number of a step's k-th link in the work item: those to receive from, then those to send to.
FN u32 linkOf(const Step& step, u32 k) { return k < step.nrecv ? step.recv[k] : step.send[k - step.nrecv]; }

// Where the turn's data lies in a link: in the slot, or in the peer's buffer at the same place as in ours.
template<Type T> FN char* place(const Shared& s, const LinkEnd& l, bool receive) {
  if (!l.direct) return l.slots + (l.pos % SLOTS) * l.slot_bytes;
  return l.direct + ((receive ? s.at.in_chunk : s.at.out_chunk) * s.work.block + s.at.offset) * sizeOf<T>;
}

// Simple: plain data in the slots; the counters say what is there.
struct Simple {
  static constexpr u8 ID = SIMPLE;
  static constexpr bool COUNTED = true;   // counters say what is there; otherwise the data does, as it moves
  static constexpr bool ALONE = true;     // all items of a launch are of this protocol
  static MEMBER bool tidies(const Turn&) { return false; }
  template<Type T> static MEMBER bool move(const Block& b, const Turn& t) {
    moveTurn<T>(b, t);
    return true;
  }
};

// Whether the step's links are received from by their counters. A signal has no data to say it.
template<class P> FN bool counted(const Step& step) { return P::COUNTED || (step.flags & STEP_NO_DATA); }

// A link becomes source or destination number `i` of the turn.
template<Type T, class P> FN void enter(Shared& s, const LinkEnd& l, u32 i, bool receive) {
  if (receive) s.turn.src[i] = place<T>(s, l, true);
  else s.turn.dst[i] = place<T>(s, l, false);
  if constexpr (!P::COUNTED) {
    (receive ? s.turn.src_pos : s.turn.dst_pos)[i] = l.pos;
    if (receive) s.turn.from[i] = &l;
    else s.turn.dst_bytes[i] = l.slot_bytes;
  }
}

// Waits for a link; false: the block leaves.
template<class P> FN bool awaitLink(const Block& b, const Shared& s, LinkEnd& l, bool receive, bool first) {
  const Work& w = s.work;
  const bool counts = counted<P>(s.step);
  Waited waited = READY;
  if (loadFlag(&l.left)) waited = PEER_LEFT;
  else if (!receive)
    waited = wait(b, l.consumed, P::COUNTED && (s.step.flags & (STEP_OFFER | STEP_PULL)) ? l.pos : l.pos + 1 - SLOTS,
                  l.seen);
  else if (counts) waited = wait(b, l.posted, l.pos + 1, l.seen);
  if (waited == PEER_LEFT) report(b.args(), ERROR_PEER_LEFT, peerOf(l), w.serial);
  if (waited != READY) return false;
  if (!first) return true;
  if constexpr (!P::COUNTED) {
    l.begin = (u32)l.pos;
    if (!receive) storeWord(&l.posted->call, callWord(l.pos, w.signature));
  }
  return !receive || !counts || !mismatch(b.args(), l, w.serial, w.signature, l.posted->signatures[l.pos % SLOTS]);
}

// What a signal of an item with WORK_OFFER says. Its first step sends to the peers in the order in which they are
// heard.
FN void hear(const Block& b, Shared& s, LinkEnd& l, u32 k, bool receive) {
  const Work& w = s.work;
  if (s.step.flags & STEP_PULL) {
    if (receive) takeOffer(s.agreement, b.args().peers, l);
    else hearTaken(s.agreement, l);
    if (!agreed(s.agreement, w, s.step)) s.turn.bytes = 0;
    return;
  }
  if (!receive) return;
  if (s.step.flags & STEP_OFFER) takeOffers(s.agreement, b.args().peers, l, w.links[w.steps[0].send[k]]);
  if ((s.step.flags & STEP_VERDICT) && !l.posted->signatures[l.pos % SLOTS]) storeFlag(&s.agreement.unable, 1);
}

// Each lane: waits for its links, and enters them.
template<Type T, class P> FN void resolve(const Block& b, Shared& s) {
  const Step& step = s.step;
  const bool in = s.turn.user & STEP_IN, out = s.turn.user & STEP_OUT;
  for (u32 k = b.lane(); k < (u32)step.nrecv + step.nsend; k += b.lanes()) {
    const u32 link = linkOf(step, k);
    LinkEnd& l = s.work.links[link];
    const bool receive = k < step.nrecv, first = !s.used[link];
    s.used[link] = 1;
    if (!awaitLink<P>(b, s, l, receive, first)) storeFlag(&s.failed, 1);
    else if (P::COUNTED) hear(b, s, l, k, receive);
    if (receive) enter<T, P>(s, l, k + (in && k >= step.place), true);
    else enter<T, P>(s, l, k - step.nrecv + out, false);
  }
}

// Lane 0: the block leaves before its work is done.
FN void leave(const Block& b, Shared& s) {
  s.stop = 1;
  putBack(s);
  if (aborted(b.args()) == ABORT_REPORT) report(b.args(), ERROR_ABORTED);
  leaveItems(b.args(), s.at.item, b.index());
}

// The manager's part before a turn.
template<Type T, class P> FN void prepare(const Block& b, Shared& s) {
  b.lanesBarrier();
  if (s.stop) return;
  const bool fresh = !STATE_IS_NEAR && s.fresh;
  if (fresh) bringNear(b, s);
  if (b.lane() == 0) {
    if (fresh) openStep(s, 0);
    if (fresh) s.fresh = 0;
    describe<T>(s);
  }
  b.lanesBarrier();
  resolve<T, P>(b, s);
  b.lanesBarrier();
  if (b.lane() == 0 && loadFlag(&s.failed)) leave(b, s);
}

// The manager's part after a turn: slots are emptied and filled. After a turn that was broken off, none are.
template<Type T, class P> FN void release(const Block& b, Shared& s) {
  if (!P::COUNTED && loadFlag(&s.failed)) {
    if (b.lane() == 0) leave(b, s);
    return;
  }
  const Step& step = s.step;
  const bool counts = counted<P>(step);
  for (u32 k = b.lane(); k < (u32)step.nrecv + step.nsend; k += b.lanes()) {
    LinkEnd& l = s.work.links[linkOf(step, k)];
    const bool receive = k < step.nrecv, pull = P::COUNTED && (step.flags & STEP_PULL);
    // A wait for what was posted before, or a look at what is for the next item.
    if (pull && (!receive || loadFlag(&s.agreement.declined))) continue;
    const u64 at = l.pos++;
    if (pull) l.consumed->signatures[at % SLOTS] = !loadFlag(&s.agreement.unable);
    if (!receive && counts) {
      if (P::COUNTED && (step.flags & STEP_OFFER)) {
        if (s.work.flags & WORK_PULL) giveOffer(s.work, *l.posted, at);
        else giveOffers(s.work, *l.posted);
      }
      if (l.peer & LINK_MOVED) tellSize(*l.posted, at, s.turn.bytes);
      l.posted->signatures[at % SLOTS] =
          P::COUNTED && (step.flags & STEP_VERDICT) ? !loadFlag(&s.agreement.unable) : s.work.signature;
    }
    // All lanes here: a release at system scope waits for all that the block has stored, and must not come twice.
    if (receive || counts) post(receive ? l.consumed : l.posted, l.pos);
    if (receive && !counts && (u32)at == l.begin && callMismatch(b.args(), l, s.work.serial, s.work.signature))
      storeFlag(&s.failed, 1);
  }
  b.lanesBarrier();
  if (b.lane() != 0) return;
  if (!P::COUNTED && loadFlag(&s.failed)) leave(b, s);
  else s.stop = !advance<T, P>(b.args(), s, b.index());
}

// A block's items from `first` on.
template<Type T, class P> FN void interpretFrom(const Block& b, Shared& s, u32 first) {
  if (b.tid() == 0) {
    storeFlag(&s.failed, 0);
    s.other = 0;
    s.stop = !openWork<T, P>(b.args(), s, first, b.index());
  }
  for (;;) {
    if (b.manager()) prepare<T, P>(b, s);
    b.barrier();
    if (s.stop) return;
    if ((s.turn.bytes || P::tidies(s.turn)) && !P::template move<T>(b, s.turn)) storeFlag(&s.failed, 1);
    b.barrier();
    if (b.manager()) release<T, P>(b, s);
  }
}

// Messages: items of Simple and of LL in any order, that have one source, one destination, and compute
// nothing.
struct Messages {};
struct SimpleMessages : Simple {
  static constexpr bool ALONE = false;
  template<Type T> static MEMBER bool move(const Block& b, const Turn& t) {
    copy<T, true>(b, t);
    return true;
  }
};
struct LineMessages : LowLatency {
  static constexpr bool ALONE = false;
  // More lines in flight, beside the loops of Simple, would spill registers.
  template<Type T> static MEMBER bool move(const Block& b, const Turn& t) {
    return moveLines<T, true, (LINE_FLIGHT > 2 ? 2 : LINE_FLIGHT)>(b, t);
  }
};
template<class P> constexpr bool isMessages = false;
template<> constexpr bool isMessages<Messages> = true;

template<Type T> FN void interpretMessages(const Block& b, Shared& s) {
  u32 first = firstItem(b.args(), b.index());
  for (bool lines = false, more = true; more; lines = !lines) {
    if (lines) interpretFrom<T, LineMessages>(b, s, first);
    else interpretFrom<T, SimpleMessages>(b, s, first);
    first = s.at.item;
    more = s.other;
    b.barrier();   // all threads have read that
  }
}

// What a kernel does.
template<Type T, class P> FN void interpret(const Block& b, Shared& s) {
  if constexpr (isMessages<P>) interpretMessages<T>(b, s);
  else interpretFrom<T, P>(b, s, firstItem(b.args(), b.index()));
}

}  // namespace
}  // namespace oxccl
