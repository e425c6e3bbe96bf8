//! What ranks tell each other of registered memory, in single words that kernels read. Pure.
//!
//! A *tag* names a registration of a rank: its number among [`REGISTRATIONS`] in the low bits, and above it how often
//! tags were given out, so that memory is not mistaken for what had its number before. An *offer* is a tag and an
//! offset: a buffer of a call. A *place* is a tag and an address: registered memory as a peer reaches it.
//! `kernels/offers.cuh` puts the two together.

use super::layout::{OFFER_BITS, PLACE_UNIT, REGISTRATIONS};

/// The offer of a buffer that no peer needs.
pub const UNUSED: u64 = 0;
/// The offer of a buffer that peers need, and that is not registered.
pub const MISSING: u64 = u64::MAX;

/// Tags given out before they come round again: none is 0, and none makes an offer look [`MISSING`].
const ROUNDS: u32 = (1 << (u64::BITS - OFFER_BITS)) / REGISTRATIONS as u32 - 1;

/// A registration of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(u32);

impl Tag {
    /// The tag of registration `number` when `before` tags have been given out.
    pub fn new(number: usize, before: u32) -> Tag {
        assert!(number < REGISTRATIONS, "no such registration");
        // From 1 on, so that the tag is not 0; the last round is left out, so that no offer is `MISSING`.
        Tag((1 + before % (ROUNDS - 1)) * REGISTRATIONS as u32 + number as u32)
    }

    /// The tag as a number, and back.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The tag of some bits; none where they are not one.
    pub fn from_bits(bits: u64) -> Option<Tag> {
        let bits = u32::try_from(bits).ok()?;
        let round = bits / REGISTRATIONS as u32;
        (1..ROUNDS).contains(&round).then_some(Tag(bits))
    }

    /// The number of the registration.
    pub fn number(self) -> usize {
        self.0 as usize % REGISTRATIONS
    }

    /// The offer of what begins `offset` bytes into the memory; [`MISSING`] where the word has no room for that.
    pub fn offer(self, offset: u64) -> u64 {
        if offset >> OFFER_BITS == 0 { u64::from(self.0) << OFFER_BITS | offset } else { MISSING }
    }

    /// The word that says where the memory is; none where the address does not fit it.
    pub fn place(self, address: u64) -> Option<u64> {
        let units = address / PLACE_UNIT;
        let fits = address.is_multiple_of(PLACE_UNIT) && units >> OFFER_BITS == 0 && address != 0;
        fits.then_some(u64::from(self.0) << OFFER_BITS | units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_have_room() {
        let tag = Tag::new(REGISTRATIONS - 1, u32::MAX);
        assert_eq!(tag.number(), REGISTRATIONS - 1);
        assert_eq!(Tag::from_bits(tag.bits().into()), Some(tag));
        assert_eq!(tag.offer(1 << OFFER_BITS), MISSING);
        assert_eq!((tag.place(513), tag.place(0), tag.place(1 << 50)), (None, None, None));
        assert!(tag.place((1 << 48) - 512).is_some());
        assert_eq!(Tag::from_bits(0), None);
        assert_eq!(Tag::from_bits(u64::MAX), None);
        assert_ne!(Tag::new(3, 0), Tag::new(3, 1));
    }

    proptest! {
        #[test]
        fn tags_offers_and_places_are_not_mistaken(
            number in 0..REGISTRATIONS,
            before: u32,
            offset in 0..1u64 << OFFER_BITS,
            units in 1..1u64 << OFFER_BITS,
        ) {
            let tag = Tag::new(number, before);
            prop_assert!(tag.bits() != 0 && tag.number() == number);
            prop_assert_eq!(Tag::from_bits(tag.bits().into()), Some(tag));
            let (offer, place) = (tag.offer(offset), tag.place(units * PLACE_UNIT).unwrap());
            prop_assert!(offer != UNUSED && offer != MISSING && place != 0);
            prop_assert_eq!((offer >> OFFER_BITS, place >> OFFER_BITS), (u64::from(tag.bits()), u64::from(tag.bits())));
            prop_assert_eq!((offer & ((1 << OFFER_BITS) - 1), place & ((1 << OFFER_BITS) - 1)), (offset, units));
        }
    }
}
