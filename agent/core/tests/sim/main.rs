//! The machine of the node against a model of the world: scripted lives (`golden`) and random ones (`random`).

#[cfg(test)]
mod admission;
#[cfg(test)]
mod anew;
mod another_life;
#[cfg(test)]
mod claims;
#[cfg(test)]
mod clock;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod collection;
#[cfg(test)]
mod ends;
#[cfg(test)]
mod ephemeral;
#[cfg(test)]
mod facts;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod image_volumes;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod late;
#[cfg(test)]
mod lives;
#[cfg(test)]
mod log;
#[cfg(test)]
mod names;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod orphans;
#[cfg(test)]
mod partial;
#[cfg(test)]
mod plan;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod probed;
#[cfg(test)]
mod pulls;
#[cfg(test)]
mod random;
#[cfg(test)]
mod refresh;
#[cfg(test)]
mod resize;
#[cfg(test)]
mod restart_all;
#[cfg(test)]
mod run;
#[cfg(test)]
mod selinux;
#[cfg(test)]
mod server;
#[cfg(test)]
mod starts;
#[cfg(test)]
mod status;
#[cfg(test)]
mod tell;
#[cfg(test)]
mod told;
#[cfg(test)]
mod trust;
#[cfg(test)]
mod users;
#[cfg(test)]
mod world;
#[cfg(test)]
mod wrong;
