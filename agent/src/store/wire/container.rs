//! Runs of containers, to and from their JSON form.

use std::time::Duration;

use berth_core::{
    id::{Attempt, ContainerId, ContainerName, PodUid},
    observation::Exit,
    record::{
        Actuated, Afterwards, ContainerRecord, ExitRecord, Hooked, Perhaps, PostStart, Probed,
        RestartBackoff, RunImage,
    },
    spec::CpuMemory,
    status::RunUser,
    time::Mono,
};

use super::{
    WireActuated, WireAfterwards, WireBackoff, WireContainer, WireExit, WireHooked, WireImage, WirePostStart,
    WireProbed, WireTermination, WireUser,
};

impl From<&ContainerRecord> for WireContainer {
    fn from(record: &ContainerRecord) -> Self {
        Self {
            id: Some(record.id.to_string()),
            attempt: record.attempt,
            begun_at: record.begun_at.0,
            anew: record.anew,
            started_in: record.started_in,
            last_in: record.last_in,
            has_run: record.has_run,
            image: record.image.as_ref().map(|image| WireImage {
                name: image.name.clone(),
                id: image.id.clone(),
                stop_signal: image.stop_signal.clone(),
                user: image.user.as_ref().map(|user| WireUser {
                    uid: user.uid,
                    gid: user.gid,
                    supplemental_groups: user.supplemental_groups.clone(),
                }),
            }),
            stopping: record.stopping.map(WireTermination::from),
            actuated: record.actuated.map(|actuated| WireActuated {
                has: actuated.has.into(),
                perhaps: actuated.perhaps.map(|perhaps| perhaps.most.into()),
                at_least: actuated.perhaps.filter(|it| it.least != it.most).map(|it| it.least.into()),
            }),
            probed: Some(WireProbed {
                started: record.probed.started,
                ready: record.probed.ready,
                afterwards: match record.probed.afterwards {
                    Afterwards::Again => WireAfterwards::Again,
                    Afterwards::Never => WireAfterwards::Never,
                },
            }),
            hooked: Some(WireHooked::from(&record.hooked)),
            exit: record.exit.as_ref().map(WireExit::from),
            last_exit: record.last_exit.as_ref().map(WireExit::from),
            backoff_ms: record.backoff.delay_ms,
            backoff_since: Some(record.backoff.since.0),
            other_backoffs: record
                .other_backoffs
                .iter()
                .map(|(key, it)| (key.clone(), WireBackoff { delay_ms: it.delay_ms, since: it.since.0 }))
                .collect(),
        }
    }
}

impl From<&Hooked> for WireHooked {
    fn from(hooked: &Hooked) -> Self {
        let post_start = match &hooked.post_start {
            PostStart::Due => WirePostStart::Due,
            PostStart::Over => WirePostStart::Over,
            PostStart::Failed(why) => WirePostStart::Failed(why.clone()),
        };
        Self { post_start, pre_stop: hooked.pre_stop, signalled: hooked.signalled.map(|at| at.0) }
    }
}

impl WireHooked {
    fn hooked(self, mono: impl Fn(Duration) -> Mono) -> Hooked {
        let post_start = match self.post_start {
            WirePostStart::Due => PostStart::Due,
            WirePostStart::Over => PostStart::Over,
            WirePostStart::Failed(why) => PostStart::Failed(why),
        };
        Hooked { post_start, pre_stop: self.pre_stop, signalled: self.signalled.map(mono) }
    }
}

impl WireContainer {
    pub(super) fn record(
        self,
        uid: &PodUid,
        name: &ContainerName,
        mono: impl Fn(Duration) -> Mono,
    ) -> ContainerRecord {
        let id_of = |known: Option<String>, attempt| match known {
            Some(id) => ContainerId::from_known(id),
            None => ContainerId::of(uid, name, attempt),
        };
        let was_asked = self.started_in.is_some();
        let unprobed = Probed { started: was_asked, ready: was_asked, afterwards: Afterwards::Again };
        let probed = |it: WireProbed| {
            let afterwards = match it.afterwards {
                WireAfterwards::Again => Afterwards::Again,
                WireAfterwards::Never => Afterwards::Never,
            };
            Probed { started: it.started, ready: it.ready, afterwards }
        };
        let post_start = if was_asked { PostStart::Over } else { PostStart::Due };
        let unhooked = Hooked { post_start, ..Hooked::default() };
        ContainerRecord {
            probed: self.probed.map_or(unprobed, probed),
            hooked: self.hooked.map_or(unhooked, |hooked| hooked.hooked(&mono)),
            id: id_of(self.id, self.attempt),
            attempt: self.attempt,
            begun_at: mono(self.begun_at),
            anew: self.anew,
            started_in: self.started_in,
            last_in: self.last_in,
            has_run: self.has_run,
            image: self.image.map(|image| RunImage {
                name: image.name,
                id: image.id,
                stop_signal: image.stop_signal,
                user: image.user.map(|user| RunUser {
                    uid: user.uid,
                    gid: user.gid,
                    supplemental_groups: user.supplemental_groups,
                }),
            }),
            stopping: self.stopping.map(|stopping| stopping.record(&mono)),
            actuated: self.actuated.map(|actuated| Actuated {
                has: actuated.has.into(),
                perhaps: actuated.perhaps.map(|most| {
                    let most = CpuMemory::from(most);
                    Perhaps { least: actuated.at_least.map_or(most, CpuMemory::from), most }
                }),
            }),
            exit: self.exit.map(|exit| exit.record(id_of, &mono)),
            last_exit: self.last_exit.map(|exit| exit.record(id_of, &mono)),
            backoff: RestartBackoff {
                delay_ms: self.backoff_ms,
                since: mono(self.backoff_since.unwrap_or(self.begun_at)),
            },
            other_backoffs: self
                .other_backoffs
                .into_iter()
                .map(|(key, it)| (key, RestartBackoff { delay_ms: it.delay_ms, since: mono(it.since) }))
                .collect(),
        }
    }
}

impl From<&ExitRecord> for WireExit {
    fn from(record: &ExitRecord) -> Self {
        let ExitRecord { id, attempt, exit, at, message, reason, post_start } = record;
        Self {
            id: Some(id.to_string()),
            attempt: *attempt,
            code: exit.code,
            started_at: exit.started_at,
            finished_at: exit.finished_at,
            oom_killed: exit.oom_killed,
            at: at.0,
            message: message.clone(),
            reason: reason.clone(),
            post_start: post_start.clone(),
        }
    }
}

impl WireExit {
    fn record(
        self,
        id_of: impl Fn(Option<String>, Attempt) -> ContainerId,
        mono: impl Fn(Duration) -> Mono,
    ) -> ExitRecord {
        let exit = Exit {
            code: self.code,
            started_at: self.started_at,
            finished_at: self.finished_at,
            oom_killed: self.oom_killed,
        };
        ExitRecord {
            id: id_of(self.id, self.attempt),
            attempt: self.attempt,
            exit,
            at: mono(self.at),
            message: self.message,
            reason: self.reason,
            post_start: self.post_start,
        }
    }
}
