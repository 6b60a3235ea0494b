//! A shim with its own service.

use std::ops::Deref;
use std::path::Path;

use berth_proto::runc;
use berth_proto::shim::{StateRequest, StateResponse, shim_service};
use berth_shim_conformance::harness::{self, Bootstrap, Driver, Spec, World};

pub(crate) struct Shim<'w>(harness::Shim<'w>);

impl<'w> Shim<'w> {
    /// Starts a shim in a bundle that holds `config`.
    pub(crate) fn start(world: &'w World, id: &str, config: &[u8], bootstrap: Bootstrap) -> Shim<'w> {
        Shim(harness::Shim::start(world, id, config, bootstrap))
    }

    /// Starts a shim for one container without a sandbox, as `ctr run` has it.
    pub(crate) fn start_plain(world: &'w World, id: &str, spec: &Spec) -> Shim<'w> {
        Shim(harness::Shim::start_plain(world, id, spec))
    }

    /// The same, with another runtime.
    pub(crate) fn start_plain_of(world: &'w World, id: &str, spec: &Spec, runtime: &Path) -> Shim<'w> {
        let mut shim = harness::Shim::start_plain(world, id, spec);
        let binary_name = runtime.display().to_string();
        let systemd_cgroup = world.groups().driver() == Driver::Systemd;
        let options = runc::Options { binary_name, systemd_cgroup, ..runc::Options::default() };
        shim.task_options = Some(berth_proto::pack(&options));
        Shim(shim)
    }

    /// The agent's view.
    pub(crate) fn state(&self) -> StateResponse {
        self.call(shim_service::NAME, shim_service::STATE, &StateRequest {}).unwrap()
    }
}

impl<'w> Deref for Shim<'w> {
    type Target = harness::Shim<'w>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
