//! Whose an out-of-memory kill is when the group that counted it is gone.
//!
//! systemd removes a scope with its files as soon as the last process in it has ended, often before anybody reads them.
//! The group above counts what happens below it, also in groups that are gone (`memory.events` in the kernel's
//! `Documentation/admin-guide/cgroup-v2.rst`).

/// Out-of-memory kills below one group, which holds the containers of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kills {
    explained: u64,
}

impl Kills {
    /// From the first container on. `counted` is what the group had counted before.
    #[must_use]
    pub fn since(counted: u64) -> Self {
        Self { explained: counted }
    }

    /// A container's own group has counted `more` kills.
    pub fn told(&mut self, more: u64) {
        self.explained = self.explained.saturating_add(more);
    }

    /// A container has ended and its group is gone; every other one has told its kills. Gives those of `counted` that are
    /// nobody else's. When two groups go at once, the first that is asked about gets the kills of both: the kernel does
    /// not say more.
    pub fn claim(&mut self, counted: u64) -> u64 {
        let unexplained = counted.saturating_sub(self.explained);
        self.explained = self.explained.max(counted);
        unexplained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_told_is_the_dead_ones() {
        let mut kills = Kills::since(7);
        assert_eq!(kills.claim(7), 0, "of pods before this one");
        assert_eq!(kills.claim(8), 1);
        assert_eq!(kills.claim(8), 0, "told once");
        kills.told(2);
        assert_eq!(kills.claim(10), 0, "told by their own groups");
        kills.told(1);
        assert_eq!(kills.claim(14), 3);
    }

    #[test]
    fn a_counter_that_lags_or_begins_anew_takes_nothing_back() {
        let mut kills = Kills::since(5);
        kills.told(1);
        assert_eq!(kills.claim(5), 0, "the group above is read before the one below");
        assert_eq!(kills.claim(6), 0);
        assert_eq!(kills.claim(0), 0);
        assert_eq!(kills.claim(7), 1);
    }
}
