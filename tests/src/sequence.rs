//! [`Sequence`]: numbers that look random and come again from the same seed.

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Sequence(u64);

impl Sequence {
    /// The numbers of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// One below `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// Yes, once in `times`.
    pub const fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    ///
    /// # Panics
    /// If there is none.
    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }

    /// As [`Sequence::of`], to be changed.
    ///
    /// # Panics
    /// If there is none.
    pub fn of_mut<'a, T>(&mut self, choices: &'a mut [T]) -> &'a mut T {
        &mut choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }

    /// In another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            list.swap(end, usize::try_from(self.below(end as u64 + 1)).unwrap());
        }
    }
}
