"""Checkpoints of torch and DeepSpeed, read and written by torch itself, for --resume and ./tandem convert.

  torch_file.py, archive.py                 one file of torch.save: its values, and where each tensor's bytes lie in it
  deepspeed.py, stage_0.py, module.py       a folder that DeepSpeed saved, at each ZeRO stage
  universal.py, pytorch_bin.py              its universal form; pytorch_model.bin
  checkpoint.py, values.py                  what is collected of them; plain values of strangers
  write_universal.py                        the other way

No tensor is copied: `read` prints an index, one JSON document that says of each tensor in which file and at which byte its
elements lie. models/foreign/ starts this, checks the index again and maps the files.
"""
