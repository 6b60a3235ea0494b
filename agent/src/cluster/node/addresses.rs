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

/// What was found last.
#[derive(Debug)]
pub(super) struct Addresses {
    name: String,
    ips: NodeIps,
    named: Vec<IpAddr>,
    asked: Option<Instant>,
    /// The resolver, while it has not answered.
    asking: Option<JoinHandle<Vec<IpAddr>>>,
}

impl Addresses {
    pub(super) fn of(settings: &NodeSettings) -> Self {
        Self { name: settings.name.clone(), ips: settings.ips, named: Vec::new(), asked: None, asking: None }
    }

    /// Addresses of now.
    pub(super) async fn find(&mut self) -> Found {
        if let NodeIps::Given(first, second) = self.ips {
            let given_faults =
                std::iter::once(first).chain(second).filter_map(|ip| given_fault(ip, is_local(ip))).collect();
            return Found { given_faults, ..Found::default() };
        }
        self.ask().await;
        Found { given_faults: Vec::new(), named: self.named.clone(), routed: config::addresses() }
    }

    /// Asks the resolver when it is time, and takes what it has answered. Only the first answer is waited for.
    async fn ask(&mut self) {
        let patience = if self.asked.is_none() { FIRST_WITHIN } else { Duration::ZERO };
        if self.asking.is_none() && self.asked.is_none_or(|asked| asked.elapsed() >= NAMED_EVERY) {
            let name = self.name.clone();
            self.asking = Some(tokio::spawn(async move { named(&name).await }));
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
async fn named(name: &str) -> Vec<IpAddr> {
    let Ok(found) = lookup_host((name, 0)).await else { return Vec::new() };
    found.map(|address| address.ip()).filter(|ip| given_fault(*ip, is_local(*ip)).is_none()).collect()
}

/// Whether an interface has the address. That a socket can be bound to it says nothing where `ip_nonlocal_bind` is set.
fn is_local(ip: IpAddr) -> bool {
    let has = |address: InterfaceAddress| {
        let address = address.address?;
        let of_v4 = address.as_sockaddr_in().map(|found| IpAddr::from(found.ip()));
        of_v4.or_else(|| address.as_sockaddr_in6().map(|found| IpAddr::from(found.ip())))
    };
    getifaddrs().is_ok_and(|mut all| all.any(|one| has(one) == Some(ip)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_machine_are_told_from_others() {
        assert!(is_local("127.0.0.1".parse().unwrap()));
        // All of this network are the machine's, and sockets can be bound to them, but the interface has one.
        assert!(!is_local("127.0.0.77".parse().unwrap()));
        assert!(!is_local("192.0.2.77".parse().unwrap()));
    }
}
