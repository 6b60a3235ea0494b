//! Addresses of the machine, as far as its settings leave a choice.

use std::{
    net::{IpAddr, UdpSocket},
    time::Duration,
};

use berth_core::cluster::node::{Found, NodeIps, NodeSettings, given_fault};
use tokio::{net::lookup_host, time::Instant};

use crate::config;

/// How often the resolver is asked for the node's own name.
const NAMED_EVERY: Duration = Duration::from_secs(300);
/// How long it may take. A node whose resolver does not answer takes the address of its default route.
const NAMED_WITHIN: Duration = Duration::from_secs(2);

/// What was found last.
#[derive(Debug)]
pub(super) struct Addresses {
    name: String,
    ips: NodeIps,
    named: Vec<IpAddr>,
    asked: Option<Instant>,
}

impl Addresses {
    pub(super) fn of(settings: &NodeSettings) -> Self {
        Self { name: settings.name.clone(), ips: settings.ips, named: Vec::new(), asked: None }
    }

    /// Addresses of now.
    pub(super) async fn find(&mut self) -> Found {
        if let NodeIps::Given(first, second) = self.ips {
            let given_faults =
                std::iter::once(first).chain(second).filter_map(|ip| given_fault(ip, is_local(ip))).collect();
            return Found { given_faults, ..Found::default() };
        }
        if self.asked.is_none_or(|asked| asked.elapsed() >= NAMED_EVERY) {
            self.named = named(&self.name).await;
            self.asked = Some(Instant::now());
        }
        Found { given_faults: Vec::new(), named: self.named.clone(), routed: config::addresses() }
    }
}

/// Addresses of the machine that its name stands for.
async fn named(name: &str) -> Vec<IpAddr> {
    let Ok(Ok(found)) = tokio::time::timeout(NAMED_WITHIN, lookup_host((name, 0))).await else {
        return Vec::new();
    };
    found.map(|address| address.ip()).filter(|ip| given_fault(*ip, is_local(*ip)).is_none()).collect()
}

/// Whether an interface has the address. Only then can a socket be bound to it; nothing is sent.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_machine_are_told_from_others() {
        assert!(is_local("127.0.0.1".parse().unwrap()));
        assert!(!is_local("192.0.2.77".parse().unwrap()));
    }
}
