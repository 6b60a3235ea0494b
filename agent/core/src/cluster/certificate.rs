//! When a certificate is replaced, and what one of the node's server has to say. Sources:
//! `k8s.io/client-go/util/certificate/certificate_manager.go` (`nextRotationDeadline`, `jitteryDuration`,
//! `certSatisfiesTemplateLocked`), `pkg/kubelet/certificate/kubelet.go` (`addressesToHostnamesAndIPs`).

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use jiff::Timestamp;

use crate::time::{Mono, Now, doubled};

/// Part of its life after which a certificate is replaced: from this on, by chance up to as much more as the second says.
const FROM: f64 = 0.7;
const SPREAD: f64 = 0.2;
/// How soon one is replaced after the last, at the earliest: a server that gives certificates which are nearly over is asked no
/// more often.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// The longest time until the clocks are read again: a wall clock may have been set.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Pauses after failures: the first one, and the longest.
const AGAIN_MIN: Duration = Duration::from_secs(2);
const AGAIN_MAX: Duration = Duration::from_secs(64);

/// From when until when a certificate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// First instant.
    pub not_before: Timestamp,
    /// Last instant.
    pub not_after: Timestamp,
}

impl Validity {
    /// Whether it is over.
    #[must_use]
    pub fn has_ended(&self, now: Timestamp) -> bool {
        self.not_after <= now
    }
}

/// When a certificate is to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    wall: Timestamp,
    mono: Mono,
    not_before: Mono,
}

impl Rotation {
    /// Of a certificate that is in use since now; `chance` is within 0 and 1.
    ///
    /// Both clocks count: a wall clock that is set back does not let the certificate end unreplaced, and one that is set right
    /// after it was wrong neither.
    #[must_use]
    pub fn plan(validity: Validity, now: Now, chance: f64) -> Self {
        let Validity { not_before, not_after } = validity;
        let life = length(not_before, not_after);
        let wall = not_before + life.mul_f64(FROM + SPREAD * chance.clamp(0.0, 1.0));
        Self { wall, mono: now.mono + length(now.wall, wall), not_before: now.mono + PAUSE_MIN }
    }

    /// How long until it is looked at again; `None` when it is due.
    #[must_use]
    pub fn look_again_in(&self, now: Now) -> Option<Duration> {
        let due = self.due_in(now);
        (!due.is_zero()).then(|| due.min(LOOK_EVERY))
    }

    /// How long until it is due; zero when it is.
    #[must_use]
    pub fn due_in(&self, now: Now) -> Duration {
        let soonest = self.not_before.since(now.mono);
        let due = self.mono.since(now.mono).min(length(now.wall, self.wall));
        due.max(soonest)
    }
}

/// Names and addresses by which a server is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerNames {
    /// Names of DNS.
    pub dns: BTreeSet<String>,
    /// Addresses.
    pub ips: BTreeSet<IpAddr>,
}

impl ServerNames {
    /// Of the addresses of a Node object, type and text of each. None where no IP is among them: a certificate is not asked for
    /// then.
    #[must_use]
    pub fn of<'a>(addresses: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut names = Self::default();
        for (kind, text) in addresses.into_iter().filter(|(_, text)| !text.is_empty()) {
            match (kind, text.parse::<IpAddr>()) {
                ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => {
                    names.ips.insert(ip);
                }
                ("Hostname" | "InternalDNS" | "ExternalDNS", _) => {
                    names.dns.insert(text.to_owned());
                }
                _ => {}
            }
        }
        (!names.ips.is_empty()).then_some(names)
    }
}

/// Whom a certificate is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// `CN`.
    pub common_name: String,
    /// `O`.
    pub organizations: BTreeSet<String>,
    /// Its alternative names.
    pub names: ServerNames,
}

impl Subject {
    /// The node, and names of its server where the certificate is for that.
    #[must_use]
    pub fn of_node(node: &str, names: ServerNames) -> Self {
        let organizations = BTreeSet::from(["system:nodes".to_owned()]);
        Self { common_name: format!("system:node:{node}"), organizations, names }
    }

    /// Whether it says all that another says. What it says beside that does no harm.
    #[must_use]
    pub fn covers(&self, wanted: &Self) -> bool {
        self.common_name == wanted.common_name
            && self.organizations.is_superset(&wanted.organizations)
            && self.names.dns.is_superset(&wanted.names.dns)
            && self.names.ips.is_superset(&wanted.names.ips)
    }
}

/// A certificate that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InUse {
    /// Whom it is for.
    pub subject: Subject,
    /// When it is to be replaced.
    pub rotation: Rotation,
}

/// What follows for the certificate of the node's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nobody knows yet how the node is reached.
    Wait,
    /// One is asked for.
    Ask,
    /// The one in use is kept, and looked at again after so long.
    Keep(Duration),
}

/// What follows, when `asked` was asked for last.
#[must_use]
pub fn next(in_use: Option<&InUse>, wanted: Option<&Subject>, asked: Option<&Subject>, now: Now) -> Next {
    let Some(wanted) = wanted else { return Next::Wait };
    let Some(in_use) = in_use else { return Next::Ask };
    let due = if in_use.subject.covers(wanted) {
        in_use.rotation.due_in(now)
    } else if asked == Some(wanted) {
        // The signer gave less than that: it is not asked without a pause.
        in_use.rotation.not_before.since(now.mono)
    } else {
        Duration::ZERO
    };
    if due.is_zero() { Next::Ask } else { Next::Keep(due.min(LOOK_EVERY)) }
}

/// How long to wait after this many failures in a row.
#[must_use]
pub fn again_after(failures: u32) -> Duration {
    doubled(AGAIN_MIN, failures.saturating_sub(1), AGAIN_MAX)
}

/// From one time to another; zero when that lies before.
fn length(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn at(mono: u64, clock: i64) -> Now {
        Now { mono: Mono(Duration::from_secs(mono)), wall: wall(clock) }
    }

    #[test]
    fn a_certificate_is_replaced_between_seven_and_nine_tenths_of_its_life() {
        let validity = Validity { not_before: wall(0), not_after: wall(1000) };
        for (chance, seconds) in [(0.0, 700), (0.5, 800), (1.0, 900), (7.0, 900)] {
            let rotation = Rotation::plan(validity, at(50, 0), chance);
            assert_eq!(rotation.due_in(at(50, 0)).as_secs_f64().round(), f64::from(seconds), "{chance}");
        }
        let rotation = Rotation::plan(validity, at(50, 300), 0.0);
        assert_eq!(rotation.due_in(at(50, 300)).as_secs(), 400, "its life began before it came");
    }

    #[test]
    fn no_step_of_the_clock_lets_it_end() {
        let validity = Validity { not_before: wall(0), not_after: wall(10_000) };
        let rotation = Rotation::plan(validity, at(0, 0), 0.0);
        assert_eq!(rotation.due_in(at(6999, 6999 - 3600)).as_secs(), 1, "set back by an hour");
        assert_eq!(rotation.due_in(at(7000, 7000 - 3600)), Duration::ZERO);
        assert_eq!(rotation.due_in(at(3400, 7000)), Duration::ZERO, "set forward by an hour");
        assert!(validity.has_ended(wall(10_000)) && !validity.has_ended(wall(9_999)));
    }

    /// One by one the looks of who keeps it, whose wall clock is set right after a while.
    #[test]
    fn no_sleep_goes_on_over_a_clock_that_is_set() {
        let validity = Validity { not_before: wall(0), not_after: wall(10_000) };
        for (off, due) in [(-3600, 7000), (0, 7000), (3600, 3400)] {
            let now = |seconds: u64| {
                let clock = i64::try_from(seconds).unwrap();
                at(seconds, if seconds < 200 { clock + off } else { clock })
            };
            let rotation = Rotation::plan(validity, now(0), 0.0);
            let mut seconds = 0;
            while let Some(pause) = rotation.look_again_in(now(seconds)) {
                assert!(pause <= LOOK_EVERY, "{pause:?}");
                seconds += pause.as_secs().max(1);
            }
            assert!((due..=due + 1).contains(&seconds), "{seconds} s, with a clock that was {off} s off");
        }
    }

    #[test]
    fn one_that_is_nearly_over_when_it_comes_is_replaced_after_a_pause() {
        let validity = Validity { not_before: wall(-300), not_after: wall(5) };
        let rotation = Rotation::plan(validity, at(100, 0), 0.0);
        assert_eq!(rotation.due_in(at(100, 0)), PAUSE_MIN);
        assert_eq!(rotation.due_in(at(110, 10)), Duration::ZERO);
        assert_eq!([1, 2, 6, 7, 99].map(|failures| again_after(failures).as_secs()), [2, 4, 64, 64, 64]);
    }

    fn names(dns: &[&str], ips: &[&str]) -> ServerNames {
        ServerNames {
            dns: dns.iter().map(|&name| name.to_owned()).collect(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn a_server_is_reached_by_the_addresses_of_its_node() {
        for (addresses, expected) in [
            (&[][..], None),
            (&[("Hostname", "a")], None),
            (&[("InternalDNS", "a"), ("ExternalDNS", "b")], None),
            (&[("InternalIP", "not-one"), ("InternalIP", "")], None),
            (&[("Hostname", "10.0.0.1")], Some(names(&[], &["10.0.0.1"]))),
            (
                &[
                    ("InternalIP", "10.0.0.1"),
                    ("ExternalIP", "fd00::1"),
                    ("Hostname", "a"),
                    ("Hostname", "a"),
                ],
                Some(names(&["a"], &["10.0.0.1", "fd00::1"])),
            ),
            (
                &[("InternalDNS", "a.in"), ("ExternalDNS", "a.out"), ("InternalIP", "::1"), ("Other", "x")],
                Some(names(&["a.in", "a.out"], &["::1"])),
            ),
        ] {
            assert_eq!(ServerNames::of(addresses.iter().copied()), expected, "{addresses:?}");
        }
    }

    #[test]
    fn a_certificate_may_say_more_than_is_wanted_and_nothing_less() {
        let wanted = Subject::of_node("a", names(&["a"], &["10.0.0.1"]));
        let with = |names| Subject::of_node("a", names);
        let others = Subject { organizations: BTreeSet::from(["others".to_owned()]), ..wanted.clone() };
        for (held, covers) in [
            (wanted.clone(), true),
            (with(names(&["a", "b"], &["10.0.0.1", "10.0.0.2"])), true),
            (with(names(&["a"], &["10.0.0.2"])), false),
            (with(names(&[], &["10.0.0.1"])), false),
            (Subject::of_node("b", wanted.names.clone()), false),
            (others, false),
        ] {
            assert_eq!(held.covers(&wanted), covers, "{held:?}");
        }
    }

    #[test]
    fn the_servers_certificate_follows_the_addresses_of_the_node() {
        let validity = Validity { not_before: wall(0), not_after: wall(1000) };
        let subject = |ip| Subject::of_node("a", names(&["a"], &[ip]));
        let (one, other) = (subject("10.0.0.1"), subject("10.0.0.2"));
        let in_use = InUse { subject: one.clone(), rotation: Rotation::plan(validity, at(0, 0), 0.0) };
        let keep = |seconds| Next::Keep(Duration::from_secs(seconds));
        for (in_use, wanted, asked, seconds, expected) in [
            (None, None, None, 0, Next::Wait),
            (None, Some(&one), None, 0, Next::Ask),
            (Some(&in_use), None, None, 900, Next::Wait),
            (Some(&in_use), Some(&one), Some(&one), 0, keep(60)),
            (Some(&in_use), Some(&one), None, 600, keep(60)),
            (Some(&in_use), Some(&one), None, 650, keep(50)),
            (Some(&in_use), Some(&one), Some(&one), 700, Next::Ask),
            (Some(&in_use), Some(&other), Some(&one), 1, Next::Ask),
            (Some(&in_use), Some(&other), Some(&other), 1, keep(9)),
            (Some(&in_use), Some(&other), Some(&other), 10, Next::Ask),
        ] {
            let now = at(seconds, i64::try_from(seconds).unwrap());
            assert_eq!(next(in_use, wanted, asked, now), expected, "{wanted:?} after {seconds} s");
        }
    }
}
