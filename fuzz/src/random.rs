//! Numbers that look random and depend on a seed alone.

/// xorshift64*, which is enough to choose mutations (Vigna, "An experimental exploration of Marsaglia's xorshift
/// generators, scrambled").
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not have similar numbers, and zero would stay zero.
        Random((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`; zero when there is none.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from((self.any() >> 11) % end).unwrap_or_default()
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        (self.any() >> 56).to_le_bytes()[0]
    }

    /// One of several, of which there must be one at least.
    pub fn pick<'c, T>(&mut self, choices: &'c [T]) -> &'c T {
        &choices[self.below(choices.len())]
    }
}
