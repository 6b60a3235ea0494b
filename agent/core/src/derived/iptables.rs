//! The chains that a node has for others: what shows components in containers which iptables the machine uses, what keeps
//! packets for the node's loopback out, and a canary in each table that tells when somebody has flushed them.
//!
//! Source: `pkg/kubelet/kubelet_network_linux.go`, `pkg/util/iptables/iptables.go`.

/// Of which addresses, each with a program of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `iptables`.
    V4,
    /// `ip6tables`.
    V6,
}

impl Family {
    /// The program.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::V4 => "iptables",
            Self::V6 => "ip6tables",
        }
    }
}

/// Something that is to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// A chain.
    Chain {
        /// Its table.
        table: &'static str,
        /// Its name.
        chain: &'static str,
    },
    /// A rule.
    Rule {
        /// Its table.
        table: &'static str,
        /// The chain that it is in.
        chain: &'static str,
        /// Whether it comes before all others of the chain, or after them.
        is_first: bool,
        /// What it says.
        rule: &'static [&'static str],
    },
}

/// Tables with a canary; the first is looked at.
pub const CANARIES: [Item; 3] = [canary("mangle"), canary("nat"), canary("filter")];

const fn canary(table: &'static str) -> Item {
    Item::Chain { table, chain: "KUBE-KUBELET-CANARY" }
}

/// Whether iptables works at all shows this chain, which the kernel has.
pub const PRESENT: Item = Item::Chain { table: "nat", chain: "POSTROUTING" };

const HINT: Item = Item::Chain { table: "mangle", chain: "KUBE-IPTABLES-HINT" };

/// What a family has, in the order in which it is made.
#[must_use]
pub fn wanted(family: Family) -> &'static [Item] {
    /// The chain in `filter`.
    const FIREWALL: &str = "KUBE-FIREWALL";
    const TABLE: &str = "filter";
    const fn jump(chain: &'static str) -> Item {
        Item::Rule { table: TABLE, chain, is_first: true, rule: &["-j", FIREWALL] }
    }
    // A route of localnet lets packets for the loopback in; those of version 6 have no such route.
    const V4: [Item; 5] = [
        HINT,
        Item::Chain { table: TABLE, chain: FIREWALL },
        jump("OUTPUT"),
        jump("INPUT"),
        Item::Rule {
            table: TABLE,
            chain: FIREWALL,
            is_first: false,
            rule: &[
                "-m",
                "comment",
                "--comment",
                "block incoming localnet connections",
                "--dst",
                "127.0.0.0/8",
                "!",
                "--src",
                "127.0.0.0/8",
                "-m",
                "conntrack",
                "!",
                "--ctstate",
                "RELATED,ESTABLISHED,DNAT",
                "-j",
                "DROP",
            ],
        },
    ];
    match family {
        Family::V4 => &V4,
        Family::V6 => &[HINT],
    }
}

/// What a program is called with.
pub type Arguments = Vec<&'static str>;

impl Item {
    /// Asks whether it is there.
    #[must_use]
    pub fn look(&self) -> Arguments {
        match *self {
            Self::Chain { table, chain } => arguments("-S", table, chain, &[]),
            Self::Rule { table, chain, rule, .. } => arguments("-C", table, chain, rule),
        }
    }

    /// Makes it.
    #[must_use]
    pub fn make(&self) -> Arguments {
        match *self {
            Self::Chain { table, chain } => arguments("-N", table, chain, &[]),
            Self::Rule { table, chain, is_first, rule } => {
                arguments(if is_first { "-I" } else { "-A" }, table, chain, rule)
            }
        }
    }
}

/// It waits five seconds for others that hold the lock of iptables.
fn arguments(
    operation: &'static str,
    table: &'static str,
    chain: &'static str,
    rule: &[&'static str],
) -> Arguments {
    [&["-w", "5", operation, chain, "-t", table][..], rule].concat()
}

/// What a program that has ended says of what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is there.
    Yes,
    /// It is not.
    No,
    /// It cannot be told.
    Unknown,
}

/// What an exit code says: 1 is that the operation failed, everything else that it was not tried (`xtables.h`: 2 is a wrong
/// command line, 3 another version, 4 a lack of resources such as the lock).
#[must_use]
pub fn answer(code: Option<i32>) -> Answer {
    match code {
        Some(0) => Answer::Yes,
        Some(1) => Answer::No,
        Some(_) | None => Answer::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arguments: &[&str]) -> String {
        arguments.join(" ")
    }

    #[test]
    fn as_the_kubelet_calls_iptables() {
        let v4: Vec<_> =
            wanted(Family::V4).iter().map(|item| (line(&item.look()), line(&item.make()))).collect();
        let rule = "KUBE-FIREWALL -t filter -m comment --comment block incoming localnet connections --dst 127.0.0.0/8 \
                    ! --src 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
        let expected = [
            (
                "-w 5 -S KUBE-IPTABLES-HINT -t mangle".to_owned(),
                "-w 5 -N KUBE-IPTABLES-HINT -t mangle".to_owned(),
            ),
            ("-w 5 -S KUBE-FIREWALL -t filter".to_owned(), "-w 5 -N KUBE-FIREWALL -t filter".to_owned()),
            (
                "-w 5 -C OUTPUT -t filter -j KUBE-FIREWALL".to_owned(),
                "-w 5 -I OUTPUT -t filter -j KUBE-FIREWALL".to_owned(),
            ),
            (
                "-w 5 -C INPUT -t filter -j KUBE-FIREWALL".to_owned(),
                "-w 5 -I INPUT -t filter -j KUBE-FIREWALL".to_owned(),
            ),
            (format!("-w 5 -C {rule}"), format!("-w 5 -A {rule}")),
        ];
        assert_eq!(v4, expected);
        assert_eq!(wanted(Family::V6), &[HINT]);
        let canaries = CANARIES.map(|item| line(&item.make()));
        assert_eq!(
            canaries,
            ["mangle", "nat", "filter"].map(|table| format!("-w 5 -N KUBE-KUBELET-CANARY -t {table}"))
        );
    }

    #[test]
    fn only_a_failed_operation_says_that_nothing_is_there() {
        for (code, expected) in [
            (Some(0), Answer::Yes),
            (Some(1), Answer::No),
            (Some(2), Answer::Unknown),
            (Some(3), Answer::Unknown),
            (Some(4), Answer::Unknown),
            (None, Answer::Unknown),
        ] {
            assert_eq!(answer(code), expected, "{code:?}");
        }
    }
}
