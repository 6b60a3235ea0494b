//! Addresses of the machine, as far as its settings leave a choice.

use std::{net::IpAddr, time::Duration};

use berth_core::cluster::node::{Found, NodeIps, NodeSettings, given_fault};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use tokio::{net::lookup_host, task::JoinHandle, time::Instant};

use crate::config;

/// How often the resolver is asked for the node's own name.
const NAMED_EVERY: Duration = Duration::from_secs(300);
/// How long it is waited for at first. A node whose resolver does not answer takes the address of its default route until it does.
const FIRST_WITHIN: Duration = Duration::from_millis(500);
/// How long the kernel is waited for, which tells of interfaces when nobody holds its lock on them. What it tells later counts at the next
/// look.
const LOCAL_WITHIN: Duration = Duration::from_secs(1);

/// Addresses that interfaces have, where the kernel tells them.
type Local = Option<Vec<IpAddr>>;

/// What was found last.
#[derive(Debug)]
pub(super) struct Addresses {
    name: String,
    ips: NodeIps,
    local: Local,
    /// A look at interfaces that has not come back.
    looking: Option<JoinHandle<Local>>,
    named: Vec<IpAddr>,
    asked: Option<Instant>,
    /// The resolver, while it has not answered.
    asking: Option<JoinHandle<Vec<IpAddr>>>,
}

impl Addresses {
    pub(super) fn of(settings: &NodeSettings) -> Self {
        Self::new(settings.name.clone(), settings.ips)
    }

    fn new(name: String, ips: NodeIps) -> Self {
        Self { name, ips, local: None, looking: None, named: Vec::new(), asked: None, asking: None }
    }

    /// Whether the kernel was asked for what was given, and has not told anything since the start.
    pub(super) fn are_untold(&self) -> bool {
        self.local.is_none() && self.looking.is_some()
    }

    /// Addresses of now.
    pub(super) async fn find(&mut self) -> Found {
        self.find_by(local).await
    }

    /// The same, by a look at interfaces that may hold its thread.
    async fn find_by(&mut self, look: impl FnOnce() -> Local + Send + 'static) -> Found {
        if let NodeIps::Given(first, second) = self.ips {
            self.look(look).await;
            let is_local = |ip: IpAddr| self.local.as_ref().map(|local| local.contains(&ip));
            let given = std::iter::once(first).chain(second);
            let given_faults = given.filter_map(|ip| given_fault(ip, is_local(ip))).collect();
            return Found { given_faults, ..Found::default() };
        }
        self.ask(look).await;
        Found { given_faults: Vec::new(), named: self.named.clone(), routed: config::addresses() }
    }

    /// Has a thread look, and takes what it has found. There is one at a time; what was found last counts until another look comes back.
    async fn look(&mut self, look: impl FnOnce() -> Local + Send + 'static) {
        let looking = self.looking.get_or_insert_with(|| tokio::task::spawn_blocking(look));
        match tokio::time::timeout(LOCAL_WITHIN, looking).await {
            Ok(found) => {
                self.looking = None;
                if let Ok(Some(local)) = found {
                    self.local = Some(local);
                }
            }
            Err(_elapsed) => tracing::debug!("the kernel does not tell the addresses of interfaces"),
        }
    }

    /// Asks the resolver when it is time, and takes what it has answered. Only the first answer is waited for.
    async fn ask(&mut self, look: impl FnOnce() -> Local + Send + 'static) {
        let patience = if self.asked.is_none() { FIRST_WITHIN } else { Duration::ZERO };
        if self.asking.is_none() && self.asked.is_none_or(|asked| asked.elapsed() >= NAMED_EVERY) {
            let name = self.name.clone();
            self.asking = Some(tokio::spawn(async move { named(&name, look).await }));
            self.asked = Some(Instant::now());
        }
        if let Some(asking) = &mut self.asking
            && let Ok(answer) = tokio::time::timeout(patience, asking).await
        {
            self.asking = None;
            self.named = answer.unwrap_or_default();
        }
    }
}

/// Addresses of the machine that its name stands for.
async fn named(name: &str, look: impl FnOnce() -> Local + Send + 'static) -> Vec<IpAddr> {
    let Ok(found) = lookup_host((name, 0)).await else { return Vec::new() };
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let Ok(Some(local)) = tokio::task::spawn_blocking(look).await else { return Vec::new() };
    let is_usable = |ip: &IpAddr| given_fault(*ip, Some(local.contains(ip))).is_none();
    found.into_iter().filter(is_usable).collect()
}

/// Addresses that interfaces have. That a socket can be bound to one says nothing where `ip_nonlocal_bind` is set.
fn local() -> Local {
    let ip = |address: InterfaceAddress| {
        let address = address.address?;
        let of_v4 = address.as_sockaddr_in().map(|found| IpAddr::from(found.ip()));
        of_v4.or_else(|| address.as_sockaddr_in6().map(|found| IpAddr::from(found.ip())))
    };
    Some(getifaddrs().ok()?.filter_map(ip).collect())
}

#[cfg(test)]
impl Addresses {
    /// The same while the kernel has not told anything until somebody lets it.
    pub(super) fn held(settings: &NodeSettings, kernel: tokio::sync::oneshot::Receiver<()>) -> Self {
        let looking = tokio::spawn(async move { kernel.await.ok().map(|()| Vec::new()) });
        Self { looking: Some(looking), ..Self::of(settings) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::time::{interval, timeout};

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn addresses_of_the_machine_are_told_from_others() {
        let local = local().unwrap();
        let has = |ip: &str| local.contains(&ip.parse().unwrap());
        assert!(has("127.0.0.1"));
        // All of this network are the machine's, and sockets can be bound to them, but the interface has one.
        assert!(!has("127.0.0.77"));
        assert!(!has("192.0.2.77"));
    }

    /// As the kernel does while somebody else holds its lock on interfaces.
    #[tokio::test]
    async fn interfaces_that_are_not_told_of_hold_up_nothing_else() {
        let ip: IpAddr = "192.0.2.7".parse().unwrap();
        let mut addresses = Addresses::new("n".to_owned(), NodeIps::Given(ip, None));
        let (answer, hangs) = mpsc::sync_channel(1);
        let (mut tick, mut ticks) = (interval(Duration::from_millis(10)), 0);
        let found = {
            let mut finding = Box::pin(addresses.find_by(move || hangs.recv_timeout(LONG).ok()));
            loop {
                tokio::select! {
                    // What is due is counted first, however late both are.
                    biased;
                    _ = tick.tick() => ticks += 1,
                    found = &mut finding => break found,
                }
            }
        };
        assert!(ticks > 2, "time stood still: {ticks}");
        assert_eq!(found.given_faults.len(), 1, "nobody knows yet: {found:?}");
        assert!(addresses.are_untold());

        answer.send(vec![ip]).unwrap();
        let late = async { while !addresses.find_by(|| None).await.given_faults.is_empty() {} };
        timeout(LONG, late).await.expect("what is told late counts");
        assert!(!addresses.are_untold());
        let found = addresses.find_by(|| None).await;
        assert!(found.given_faults.is_empty(), "what was found last counts: {found:?}");
        let gone = async { while addresses.find_by(|| Some(Vec::new())).await.given_faults.is_empty() {} };
        timeout(LONG, gone).await.expect("what is told next counts");
    }

    #[tokio::test]
    async fn a_refusal_to_tell_of_interfaces_is_an_answer() {
        let mut addresses =
            Addresses::new("n".to_owned(), NodeIps::Given("192.0.2.7".parse().unwrap(), None));
        let answered = async {
            addresses.find_by(|| None).await;
            while addresses.are_untold() {
                addresses.find_by(|| None).await;
            }
        };
        timeout(LONG, answered).await.expect("a refusal is an answer");
    }
}
