//! What befalls a node: shims, containerd and the agent go and come back, and somebody changes what is there.

use berth_core::{
    event::Event,
    failure::FailureKind,
    id::{PodUid, SandboxId, VolumeName},
    pod::port::look::Finding,
};

use jiff::SignedDuration;

use super::{
    CLOCK_STEP_MAX,
    chaos::{Chaos, STRAY},
};
use crate::world::{Report, failure};

impl Chaos {
    pub(super) fn lose(&mut self) {
        let alive = self.run.world.sandboxes.iter().filter(|(_, one)| one.is_alive);
        let alive: Vec<SandboxId> = alive.map(|(id, _)| id.clone()).collect();
        if let Some(id) = self.dice.pick(&alive) {
            self.count("sandboxes lost");
            let now = self.run.now;
            self.run.world.lose(&id, now);
        }
    }

    /// A shim stops to answer, or answers again.
    pub(super) fn fall_silent(&mut self) {
        let alive = self.run.world.sandboxes.iter().filter(|(_, one)| one.is_alive);
        let alive: Vec<SandboxId> = alive.map(|(id, _)| id.clone()).collect();
        let Some(id) = self.dice.pick(&alive) else { return };
        if self.run.world.silent.contains(&id) {
            self.run.world.speak(&id);
        } else {
            self.count("shims fallen silent");
            self.run.world.fall_silent(&id);
        }
    }

    /// Somebody removes containerd's record of a sandbox. Only a look at the whole runtime tells.
    pub(super) fn unrecord(&mut self) {
        let known = self.run.world.sandboxes.iter().filter(|(_, one)| !one.pod.as_str().starts_with(STRAY));
        let ids: Vec<SandboxId> = known.map(|(id, _)| id.clone()).collect();
        let Some(id) = self.dice.pick(&ids) else { return };
        self.count("records of sandboxes removed");
        self.run.world.sandboxes.get_mut(&id).unwrap().is_recorded = false;
        self.run.set_runtime(true);
        self.come_back();
    }

    /// What has dice of its own: looks, which may fail or come late, and what they are for.
    pub(super) fn behind(&mut self) {
        if self.behind.is_one_in(40) {
            self.change_behind();
        }
        if self.behind.is_one_in(10) {
            self.end_starts();
        }
        if self.behind.is_one_in(10) {
            self.run.are_writes_slow = !self.run.are_writes_slow;
        }
        if self.behind.is_one_in(5) && self.run.write() {
            self.count("records written late");
        }
        if self.behind.is_one_in(5) {
            self.run.tell_write();
        }
        self.end_late();
        if self.behind.is_one_in(25) {
            let silent: Vec<SandboxId> = self.run.world.silent.iter().cloned().collect();
            if let Some(id) = self.behind.pick(&silent) {
                self.run.world.speak(&id);
            }
        }
        if self.behind.is_one_in(4) {
            self.run.look();
        }
        if self.behind.is_one_in(20)
            && let Some(look) = self.run.looks.pop_front()
        {
            let outcome = Err(failure(FailureKind::Unknown, "no end within 60 s"));
            self.run.handle(Event::Done { op: look.op(), outcome });
        }
    }

    /// Somebody changes what the agent made.
    fn change_behind(&mut self) {
        let uids: Vec<PodUid> = self.run.world.records.keys().cloned().collect();
        let Some(uid) = self.behind.pick(&uids) else { return };
        let data = || Finding::Volume(VolumeName::new("data"));
        let findings = [Finding::Netns, Finding::Cgroup, Finding::Dirs, data(), Finding::Files];
        let finding = self.behind.pick(&findings).unwrap();
        if self.run.world.change_behind(&uid, finding) {
            self.count("changes behind the agent");
        }
    }

    pub(super) fn resync(&mut self) {
        let world = &self.run.world;
        let alive = world.sandboxes.iter().filter(|(id, one)| one.is_alive && !world.silent.contains(id));
        let alive: Vec<SandboxId> = alive.map(|(id, _)| id.clone()).collect();
        let Some(id) = self.dice.pick(&alive) else { return };
        // What happened before the connection was made anew is in the state alone.
        self.run.world.reports.retain(|(sandbox, _)| *sandbox != id);
        let report = self.run.read_shim(&id);
        self.run.world.reports.push((id, Report::Told(report)));
        if self.dice.is_one_in(2) {
            return self.count("states heard late");
        }
        while self.run.world.has_news() {
            self.run.report();
        }
    }

    /// Somebody sets the wall clock, forward or back.
    pub(super) fn set_clock(&mut self) {
        let longest = i64::try_from(CLOCK_STEP_MAX.as_millis()).unwrap();
        let within = usize::try_from(2 * longest + 1).unwrap();
        let step = i64::try_from(self.clock.below(within)).unwrap() - longest;
        self.run.step_clock(SignedDuration::from_millis(step));
        self.count("steps of the clock");
    }

    /// Containerd goes, or is there again, which the agent may hear later.
    pub(super) fn toggle_runtime(&mut self) {
        if self.run.observed.is_some() {
            return self.run.hear_runtime();
        }
        if !self.run.world.runtime_is_down {
            return self.run.set_runtime(true);
        }
        self.come_back();
    }

    fn come_back(&mut self) {
        if self.behind.is_one_in(4) {
            self.stray();
        }
        self.run.read_runtime();
        if self.dice.is_one_in(2) {
            return self.run.hear_runtime();
        }
        self.count("runtimes heard late");
    }

    /// Somebody's pod is found that nobody knows.
    fn stray(&mut self) {
        let (uid, now) = (self.next_stray(), self.run.now);
        let sandbox = self.run.world.stray(&uid, now);
        match self.behind.below(4) {
            0 => self.run.world.fall_silent(&sandbox),
            1 => self.run.world.lose(&sandbox, now),
            _ => {}
        }
    }

    fn next_stray(&mut self) -> PodUid {
        self.count("strays");
        self.versions += 1;
        PodUid::new(format!("{STRAY}{}", self.versions))
    }

    /// The agent is killed. What it had asked for was done, or not.
    pub(super) fn restart(&mut self) {
        self.count("agent restarts");
        if self.run.world.records.values().any(|record| record.resizing.is_some()) {
            self.count("resizes in progress when the agent was killed");
        }
        for at in (0..self.run.open.len()).rev() {
            if self.dice.is_one_in(2) {
                self.perform_whole(at);
            }
        }
        while !self.run.writes.is_empty() {
            self.count("records being written when the agent was killed");
            if self.dice.is_one_in(2) {
                self.run.write();
            } else {
                self.run.writes.pop_front();
            }
        }
        self.carry_out_some();
        match self.behind.below(6) {
            0 => self.stray(),
            1 => {
                let uid = self.next_stray();
                self.run.world.stray_files(&uid);
            }
            _ => {}
        }
        let was_down = self.run.world.runtime_is_down;
        self.run.world.runtime_is_down = false;
        let alive = self.run.world.sandboxes.iter().filter(|(_, one)| one.is_alive);
        let alive: Vec<SandboxId> = alive.map(|(id, _)| id.clone()).collect();
        if self.dice.is_one_in(3)
            && let Some(id) = self.dice.pick(&alive)
        {
            self.count("silent shims");
            self.run.world.fall_silent(&id);
        }
        self.begin_again();
        if was_down {
            self.run.set_runtime(true);
        }
    }

    /// The next agent hears the sources in any order.
    pub(super) fn begin_again(&mut self) {
        if self.is_another_order(2) {
            self.count("restarts before manifests are read");
            self.run.restart_before_manifests(None);
        } else {
            self.run.restart(None);
        }
    }
}
