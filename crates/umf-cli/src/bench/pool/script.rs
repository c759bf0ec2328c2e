//! What is asked of every allocator: the same sizes in the same order.

/// A range of sizes, and how many blocks of it live at a time.
#[derive(Clone, Copy)]
pub(in crate::bench) struct Sizes {
    pub name: &'static str,
    least: usize,
    most: usize,
    spread: Spread,
    pub live: usize,
    /// Allocations in one measured batch of one thread.
    pub batch: usize,
}

#[derive(Clone, Copy)]
enum Spread {
    /// All sizes are as likely.
    Even,
    /// All doublings are as likely.
    Doublings,
}

/// 8 B to 4 KiB.
pub(in crate::bench) const SMALL: Sizes =
    Sizes { name: "small", least: 8, most: 4 << 10, spread: Spread::Even, live: 1000, batch: 1 << 14 };
/// 1 KiB to 64 KiB.
pub(in crate::bench) const MIDDLE: Sizes = Sizes {
    name: "1k_64k",
    least: 1 << 10,
    most: 64 << 10,
    spread: Spread::Even,
    live: 1000,
    batch: 1 << 13,
};
/// 64 KiB to 4 MiB.
pub(super) const LARGE: Sizes =
    Sizes { name: "large", least: 64 << 10, most: 4 << 20, spread: Spread::Even, live: 200, batch: 1 << 12 };
/// 8 B to 4 MiB.
pub(super) const MIXED: Sizes =
    Sizes { name: "mixed", least: 8, most: 4 << 20, spread: Spread::Doublings, live: 1000, batch: 1 << 13 };

impl Sizes {
    /// The mean size.
    pub(super) fn mean(&self) -> usize {
        self.least.midpoint(self.most)
    }

    /// The same with as many times fewer live blocks.
    pub(super) const fn with_fewer(self, fewer: usize) -> Sizes {
        Sizes { live: self.live / fewer, ..self }
    }

    /// The next size.
    pub(super) fn draw(&self, random: &mut Random) -> usize {
        match self.spread {
            Spread::Even => self.least + random.below(self.most - self.least),
            Spread::Doublings => {
                let doublings = (self.most / self.least).ilog2() as usize;
                let from = self.least << random.below(doublings);
                from + random.below(from)
            }
        }
    }
}

/// xorshift, seeded by number: the same for every allocator.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(number: usize) -> Random {
        Random(0x9E37_79B9_7F4A_7C15 ^ (number as u64 + 1))
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

const LENGTH: usize = 1024;

/// Sizes and places that a thread goes through again and again; short enough to stay in its cache.
pub(super) struct Script {
    sizes: [u32; LENGTH],
    places: [u32; LENGTH],
}

impl Script {
    /// That of a thread.
    pub(super) fn new(sizes: &Sizes, thread: usize) -> Script {
        let mut random = Random::new(thread);
        Script {
            sizes: std::array::from_fn(|_| sizes.draw(&mut random) as u32),
            places: std::array::from_fn(|_| random.below(sizes.live) as u32),
        }
    }

    /// The size of step `number`: another one at the same place of the next turn.
    #[inline]
    pub(super) fn size(&self, number: usize) -> usize {
        self.sizes[(number + number / LENGTH) % LENGTH] as usize
    }

    /// Which of the live blocks step `number` replaces.
    #[inline]
    pub(super) fn place(&self, number: usize) -> usize {
        self.places[number % LENGTH] as usize
    }
}
