//! How a client is attached to the process of a container.

use crate::spec::{Stdin, Stdio};

/// What the end of a client's input means for an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtInputEnd {
    /// The container's input ends too, and the client takes its output until it ends.
    Closes,
    /// The container's input ends too, and the client leaves, since it takes no output.
    ClosesAndLeaves,
    /// The client leaves, and others may come.
    Leaves,
    /// The container reads nothing, so its input means nothing either: the client takes output until the container ends.
    Ignored,
    /// There is nothing to share: no input that is read, and no output that is taken. The session is over as it begins.
    Nothing,
}

impl AtInputEnd {
    /// What it means for a client that takes output, or does not, of a container with these streams.
    ///
    /// Source: containerd `internal/cri/io/container_io.go` `Attach`.
    #[must_use]
    pub fn of(Stdio { stdin, tty }: Stdio, takes_output: bool) -> Self {
        match (stdin, tty, takes_output) {
            (Stdin::Closed, _, true) => Self::Ignored,
            (Stdin::Closed, _, false) => Self::Nothing,
            (Stdin::Once, false, true) => Self::Closes,
            (Stdin::Once, false, false) => Self::ClosesAndLeaves,
            (Stdin::Once, true, _) | (Stdin::Open, _, _) => Self::Leaves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_input_means_what_the_container_does_with_it() {
        for (stdin, tty, with_output, without) in [
            (Stdin::Closed, false, AtInputEnd::Ignored, AtInputEnd::Nothing),
            (Stdin::Closed, true, AtInputEnd::Ignored, AtInputEnd::Nothing),
            (Stdin::Once, false, AtInputEnd::Closes, AtInputEnd::ClosesAndLeaves),
            (Stdin::Once, true, AtInputEnd::Leaves, AtInputEnd::Leaves),
            (Stdin::Open, false, AtInputEnd::Leaves, AtInputEnd::Leaves),
            (Stdin::Open, true, AtInputEnd::Leaves, AtInputEnd::Leaves),
        ] {
            let stdio = Stdio { stdin, tty };
            assert_eq!((AtInputEnd::of(stdio, true), AtInputEnd::of(stdio, false)), (with_output, without));
        }
    }
}
