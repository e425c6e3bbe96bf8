//! Who belongs together, and where a grow meets.
