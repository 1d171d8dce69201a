// trainer/cifar/run.hpp — the CIFAR-10 example: converts its flags into a Trainer's arguments, and
// prints loss lines and accuracy.
#pragma once

#include "engine/config/config.hpp"
#include "models/cifar/records.hpp"
#include "trainer/cifar/flags.hpp"
#include "trainer/trainer.hpp"

namespace tandem {

/// Returns a Trainer's arguments for the net that the flags choose, and the training images.
[[nodiscard]] TrainerArgs cifar_args(const CifarFlags& flags, const Config& config,
                                     std::shared_ptr<const CifarImages> images,
                                     const std::string& description);

/// Returns options that evaluate the loss over the test images after each epoch.
[[nodiscard]] EvaluationOptions cifar_evaluation(std::shared_ptr<const CifarImages> images,
                                                 const RunLength& length);

/// Trains, and prints the example's line after every --log-interval mini-batches of an epoch.
void train_cifar(const CifarFlags& flags, Trainer& trainer);

/// Prints the example's accuracy lines over the test images, of which each rank counts its share,
/// and writes predictions.png. A collective.
void report_accuracy(const CifarFlags& flags, Trainer& trainer, const CifarImages& images);

}  // namespace tandem
