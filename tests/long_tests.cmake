# What these run is one thread's work: ThreadSanitizer, under which they take minutes, has nothing to find in them.
set(TANDEM_ONE_THREAD_TESTS PowerCut.* NcclHosts.* *UpdateFrom.EveryTargetType* UpdateKernels.AWarp*
  PlacementModel.PredictsEachPlacement PlacementSolver.IsWithinThreePercentOfTheBestOfAllPlacements
  Both/NetContract.FramesArriveWholeOnceAndInOrder/Sim)

# Tests that take seconds each: patterns of GoogleTest, by the times of a release run on two cores (2026-11-22, other work
# beside it: everything from 3 s on). `./tandem test --quick` leaves them out; they are four fifths of the time.
set(TANDEM_LONG_TESTS
  # whole programs, on several ranks, or beside Python's peers
  Each/PlantedBugs.* Range/ManyHosts.* NcclHosts.Whichever* Matrix/JointUpdates.* Matrix/StagesOnRanks.* HostileTokenizer.* Rendezvous.ASilentConnection*
  Lora.* AddTokens.* PackedRun.* LostReports.* Traces.*
  Families/References.* Families/ExpertTraining.* Models/Parity.* ParityLimits.* Ranks.* Memory.* Scripts.*
  Finetune.SchedulesThreadsAndCheckpointingDoNotChangeOneDigit Finetune.LeavesEveryArtefactAndTheLossFalls
  Defaults.* RateSchedule.IsTransformers* Finetune.TransformersLoads* Finetune.TheSameSeed* Finetune.RealRecords* Cifar.* GenerateCommand.*
  BadInput.FlagsThatMakeNoSense TandemProgram.ConfigRejects* Models/ExpertsReference.*
  Hosts.AConnectionThatHangs*
  *.TransformersLoadsWhatWeWrite Descriptions.HaveTransformersNamesAndShapes IoCheckpoint.PythonReads* IoMxfp4.Transformers*
  ImportWriters.* ImportGolden.* Golden/GoOn.*
  Plan.* *Advice.* ConvertGolden.* CheckpointCli.* OptimizerStepOracle.*
  Evaluation.* Blocks.*
  # every combination of stage, type, schedule or placement
  *Devices.GiveTheBits* Boundaries.LeaveTheBits* *OnRanks.Change* *DevicePlacements.ChangeNoBit* *CudaPlace* CudaRanks.* CifarMoe.* CifarRecords.Packed* *Stages.GiveTheSameBitsOnOneRank
  TrainStep.EveryScheduleGivesTheSameBits UpdateKernels.AWarp* UpdateSpeed.*
  # a checkpoint's every bit, call and power cut
  CheckpointFolder.EveryFlippedBit* CheckpointFolder.AnInterruptedRemoval* CheckpointFaults.AnErrorAtAnyCall*
  CheckpointFaults.ShortTransfers* PowerCut.*
  Each/Resume.* TrainerResume.* ResumeOnRanks.*
  PlacementSolver.IsWithinThreePercentOfTheBestOfAllPlacements)
