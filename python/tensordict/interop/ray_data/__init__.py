"""Conversion of tensordicts, and of saves that workers read, to Ray Data and back.

``blocks.py`` makes the blocks of a dataset, Arrow tables of rows. ``describing.py``
finds the types and sizes of the columns without reading the rows. ``reading.py``
contains the tasks that read rows of a save. ``joining.py`` joins blocks to one table.
``datasets.py`` contains the public functions.
"""
