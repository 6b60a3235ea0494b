//! What is measured in the background while somebody asks for it: trees of each pod once in a period, each at a moment of its own.

use std::time::Duration;

use berth_core::{
    stats::{PodSubject, Subjects},
    time::Mono,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::{READ_WITHIN, Stats, containerd::Layers};
use crate::{causes::with_causes, clock, runtime};

/// How often trees are measured where volumes are not.
const PERIOD: Duration = Duration::from_secs(60);

/// The first round is sooner done: a node that begins has no figures.
const FIRST: Duration = Duration::from_secs(10);

/// How often the layers of images are asked for.
const LAYERS_EVERY: Duration = Duration::from_secs(300);

/// How long a request for statistics waits for where layers are: they are told without.
const ASKED_WITHIN: Duration = Duration::from_secs(2);

/// For how long a question about what is on disks keeps it measured: longer than monitoring pauses between two.
const WANTED_FOR: Duration = Duration::from_secs(600);

/// The shortest period: a shorter one would measure all the time.
const PERIOD_MIN: Duration = Duration::from_secs(10);

impl Stats {
    /// Measures until the agent stops.
    pub async fn walk(self) {
        tokio::join!(self.follow_images(), self.follow_pods());
    }

    async fn follow_pods(&self) {
        let period = self.0.host.config.stats.volume_period.unwrap_or(PERIOD).max(PERIOD_MIN);
        let mut spread_over = period.min(FIRST);
        loop {
            self.somebody_wants_to_know(period.max(WANTED_FOR)).await;
            let began = Instant::now();
            self.measure_pods(spread_over).await;
            sleep_until(began + spread_over).await;
            spread_over = period;
        }
    }

    /// Waits until somebody has asked for what is on disks within such a time: nobody looks at trees for nobody.
    async fn somebody_wants_to_know(&self, within: Duration) {
        let is_wanted = |asked: &Option<Mono>| asked.is_some_and(|at| clock::mono().since(at) < within);
        // The sender lives as long as this.
        drop(self.0.wanted.subscribe().wait_for(is_wanted).await);
    }

    /// Asks containerd, which may be away, beside the pods.
    async fn follow_images(&self) {
        let mut layers = Layers::default();
        loop {
            self.somebody_wants_to_know(WANTED_FOR.max(LAYERS_EVERY * 2)).await;
            let again = if self.measure_images(&mut layers).await { LAYERS_EVERY } else { PERIOD };
            sleep(again).await;
        }
    }

    /// Begins the measuring of one pod after another. Each is seen through by itself, so one that hangs holds up no other; one that is
    /// not done yet is not begun again.
    async fn measure_pods(&self, spread_over: Duration) {
        let mut subjects = self.subjects();
        // Nobody is told what is on disks of a pod of which nothing runs.
        subjects.pods.retain(|pod| !pod.containers.is_empty());
        self.forget_others(&subjects);
        let pause = u32::try_from(subjects.pods.len()).ok().and_then(|count| spread_over.checked_div(count));
        for pod in subjects.pods {
            let layers = self.layers_of(pod.clone()).await;
            tokio::spawn(self.clone().measure_pod(pod, layers));
            sleep(pause.unwrap_or_default()).await;
        }
    }

    async fn layers_of(&self, pod: PodSubject) -> Vec<(String, String)> {
        let Some(below) = self.layers_dir().await else { return Vec::new() };
        let stats = self.clone();
        let found = self.0.thread.run(READ_WITHIN, move || stats.upper_dirs(&pod, &below)).await;
        found.unwrap_or_default()
    }

    fn forget_others(&self, subjects: &Subjects) {
        self.disks().pods.retain(|uid, _| subjects.pods.iter().any(|pod| pod.uid == *uid));
    }

    /// Whether containerd has told it.
    async fn measure_images(&self, layers: &mut Layers) -> bool {
        let snapshotter = self.snapshotter();
        match layers.measure(&self.0.host.containerd, &snapshotter).await {
            Ok(used) => {
                self.disks().layers_used = Some(used);
                true
            }
            Err(error) => {
                tracing::debug!(error = with_causes(&error), "layers are not measured");
                false
            }
        }
    }

    /// Where containerd has its layers. Asked for until it has answered.
    pub(super) async fn layers_dir(&self) -> Option<String> {
        let ask = async || {
            let (containerd, snapshotter) = (&self.0.host.containerd, self.snapshotter());
            runtime::layers_dir(containerd, &snapshotter, ASKED_WITHIN).await.map_err(|error| {
                tracing::debug!(error = with_causes(&error), "where layers are is not known");
            })
        };
        self.0.layers_dir.get_or_try_init(ask).await.ok()?.clone()
    }

    fn snapshotter(&self) -> String {
        self.0.host.runtime.borrow().settings.snapshotter.clone()
    }
}
