//! What of the machine changes while the agent runs: read before pods are prepared from it.

use std::{net::IpAddr, path::PathBuf};

use berth_core::config::NodeFacts;

use super::{FactsError, HOSTS, addresses, hostname, text_or_empty};

/// Where it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveFacts {
    /// The node's resolv.conf; `None` gives pods none (`resolvConf: ""`).
    pub resolv_conf: Option<PathBuf>,
    /// Addresses that were given by flag: then the machine is not asked.
    pub fixed_ips: Option<Vec<IpAddr>>,
}

impl LiveFacts {
    /// Reads everything: two small files, and three calls of the kernel.
    ///
    /// # Errors
    /// The first that cannot be had.
    pub fn read(&self) -> Result<NodeFacts, FactsError> {
        Ok(NodeFacts {
            ips: self.fixed_ips.clone().unwrap_or_else(addresses),
            hostname: hostname()?,
            resolv_conf: self.resolv_conf.as_deref().map(text_or_empty).transpose()?.unwrap_or_default(),
            hosts: text_or_empty(HOSTS.as_ref())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_files_are_read_anew_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let fixed = vec![IpAddr::from([10, 0, 0, 7])];
        let live = LiveFacts { resolv_conf: Some(path.clone()), fixed_ips: Some(fixed.clone()) };
        assert_eq!(live.read().unwrap().resolv_conf, "", "there is none before the network");
        fs::write(&path, "nameserver 10.0.0.1\n").unwrap();
        let facts = live.read().unwrap();
        assert_eq!((&*facts.resolv_conf, &facts.ips), ("nameserver 10.0.0.1\n", &fixed));
        let none = LiveFacts { resolv_conf: None, fixed_ips: None };
        assert_eq!(none.read().unwrap().resolv_conf, "");
    }
}
