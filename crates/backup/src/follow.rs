//! Follows blocks that were moved to popular blocks, possibly several times: damage to a popular block affects them,
//! too.

use std::ops::Range;

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{PackReference, Slot, SourceId, Witness};
use onefold_repository::{MovedRun, Pack};

use crate::error::Result;
use crate::verify::{Damage, Verifier, damage};

/// Consecutive needed numbers that were moved to consecutive numbers of one popular pack.
pub(crate) struct MovedNumbers {
    store: SourceId,
    first: u64,
    /// The witness of the pack that the needed numbers are in.
    witness: Witness,
    popular: SourceId,
    to: MovedRun,
}

impl Verifier<'_> {
    pub(crate) fn note_moved(&mut self, store: SourceId, pack: &Pack, needed: &[bool]) {
        let PackReference { number, witness } = pack.reference();
        let popular = self.popular_of(store);
        let mut n = 0;
        while n < needed.len() {
            let to = needed[n].then(|| pack.moved_from(n, needed.len() - n));
            let Some(mut to) = to.flatten() else {
                n += 1;
                continue;
            };
            let following = needed[n..n + to.blocks].iter();
            to.blocks = following.take_while(|is_needed| **is_needed).count();
            self.moved.push(MovedNumbers {
                store,
                first: number * BLOCKS_PER_PACK + n as u64,
                witness,
                popular,
                to,
            });
            n += to.blocks;
        }
    }

    /// Reports damage to popular blocks as damage of the blocks that were moved to them, too.
    pub(crate) fn follow_moved(&mut self) -> Result<()> {
        let mut moved = std::mem::take(&mut self.moved);
        while !moved.is_empty() {
            moved.sort_unstable_by_key(|run| (run.popular, run.to.number));
            let mut further = Vec::new();
            let pack_of = |run: &MovedNumbers| (run.popular, run.to.number / BLOCKS_PER_PACK);
            for of_pack in moved.chunk_by(|a, b| pack_of(a) == pack_of(b)) {
                let (popular, number) = pack_of(&of_pack[0]);
                let pack = match self.repository.pack_or_newer(popular, number, 0) {
                    Ok(Some(pack)) => Ok(pack),
                    Ok(None) => Err(self.repository.missing_pack(popular, number).to_string()),
                    Err(error) => Err(damage(error.into())?),
                };
                for run in of_pack {
                    self.follow(run, &pack, &mut further)?;
                }
            }
            moved = further;
        }
        Ok(())
    }

    fn follow(
        &mut self,
        run: &MovedNumbers,
        pack: &std::result::Result<Pack, String>,
        further: &mut Vec<MovedNumbers>,
    ) -> Result<()> {
        let all = 0..run.to.blocks as u64;
        let pack = match pack {
            Ok(pack) => pack,
            Err(why) => {
                self.add_moved(run, all, why);
                return Ok(());
            }
        };
        if let Err(error) = pack.check_witness(run.to.witness) {
            self.add_moved(run, all, &damage(error.into())?);
            return Ok(());
        }
        let in_pack = (run.to.number % BLOCKS_PER_PACK) as usize;
        for n in all {
            let number = run.to.number + n;
            let damaged = self.damages.iter().find(|damage| {
                let is_it = damage.store == run.popular && damage.numbers.contains(&number);
                is_it
                    && damage
                        .witness
                        .is_none_or(|witness| witness == run.to.witness)
            });
            let slot = pack.slots().get(in_pack + n as usize);
            let why = match slot.copied().unwrap_or(Slot::Gone) {
                Slot::Stored(_) => damaged.map(|damage| damage.message.clone()),
                Slot::Moved { .. } => {
                    let to = pack.moved_from(in_pack + n as usize, 1);
                    let to = to.filter(|to| to.number < number);
                    further.extend(to.map(|to| MovedNumbers {
                        store: run.store,
                        first: run.first + n,
                        witness: run.witness,
                        popular: run.popular,
                        to,
                    }));
                    to.is_none()
                        .then(|| "it was moved to a higher number".to_owned())
                }
                Slot::Lost(_) => Some("it was damaged and is lost".to_owned()),
                Slot::Gone => Some("it is not there".to_owned()),
            };
            if let Some(why) = why {
                self.add_moved(run, n..n + 1, &why);
            }
        }
        Ok(())
    }

    /// Records damage of some of the moved numbers, merged into the preceding record if that has the same message.
    fn add_moved(&mut self, run: &MovedNumbers, blocks: Range<u64>, why: &str) {
        let numbers = run.first + blocks.start..run.first + blocks.end;
        let message = format!("stored blocks are popular ones now: {why}");
        if let Some(last) = self.damages.last_mut()
            && (last.store, last.witness) == (run.store, Some(run.witness))
            && (last.numbers.end, &last.message) == (numbers.start, &message)
        {
            last.numbers.end = numbers.end;
            return;
        }
        self.damages.push(Damage {
            store: run.store,
            numbers,
            witness: Some(run.witness),
            message,
        });
    }
}
