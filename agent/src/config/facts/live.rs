//! What of the machine changes while the agent runs: read before pods are prepared from it.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use berth_core::config::{NodeFacts, ResolvConf};

use super::{FactsError, HOSTS, addresses, hostname, text, text_or_empty};

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
            resolv_conf: resolv_conf(self.resolv_conf.as_deref()),
            hosts: text_or_empty(HOSTS.as_ref())?,
        })
    }
}

/// The resolv.conf that pods are given; `None` gives them none. One that cannot be read keeps no agent from its work.
pub(in crate::config) fn resolv_conf(path: Option<&Path>) -> ResolvConf {
    let Some(path) = path else { return ResolvConf::Nothing };
    match text(path) {
        Ok(text) => ResolvConf::Text(text),
        Err(error) => ResolvConf::Unreadable(format!("open {}: {error}", path.display())),
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
        let missing = format!("open {}: No such file or directory (os error 2)", path.display());
        assert_eq!(live.read().unwrap().resolv_conf, ResolvConf::Unreadable(missing));
        fs::write(&path, "nameserver 10.0.0.1\n").unwrap();
        let facts = live.read().unwrap();
        assert_eq!(facts.resolv_conf, ResolvConf::Text("nameserver 10.0.0.1\n".into()));
        assert_eq!(facts.ips, fixed);
        let none = LiveFacts { resolv_conf: None, fixed_ips: None };
        assert_eq!(none.read().unwrap().resolv_conf, ResolvConf::Nothing);
    }
}
